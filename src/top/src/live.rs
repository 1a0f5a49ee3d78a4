//! Event loop of the live view.

use std::io;
use std::time::Duration;

use crossterm::event::{Event, EventStream};
use futures::StreamExt as _;
use jiff::Timestamp;
use kube::Client;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::MissedTickBehavior;

use crate::connection::{Checked, Reaction, Status};
use crate::draw::{Theme, draw};
use crate::reader::check;
use crate::scope::Scope;
use crate::screen::{Effect, Key, Screen};
use crate::table_kind::TableKind;
use crate::terminal::{Session, panicked};
use crate::view::View;
use crate::watches::Watches;
use rooflet_base::clock::Clock;
use rooflet_base::environment::is_set;
use rooflet_base::task::Tasks;
use rooflet_client::Changes;

/// Interval between draws without a change, for ages.
const REDRAW_PERIOD: Duration = Duration::from_secs(1);
/// Least interval between draws after changes of objects.
const CHANGE_DELAY: Duration = Duration::from_millis(100);
/// Interval between checks of the API server.
const CHECK_PERIOD: Duration = Duration::from_secs(3);

/// Reason why the live view ended early.
#[derive(Debug, thiserror::Error)]
pub enum ShowError {
    #[error("failed to use the terminal; `--once` needs none")]
    Terminal(#[from] io::Error),
    #[error("the view panicked; the message is above")]
    Panicked,
}

/// Shows the fleet until the user quits or the process is asked to end. `server` is the address of
/// the API server. `namespace` restricts deployments, replicas and events.
pub async fn show(
    client: &Client,
    server: &str,
    namespace: Option<String>,
    table: TableKind,
    clock: &Clock,
) -> Result<(), ShowError> {
    let mut ends = Ends::new()?;
    let mut suspends = signal(SignalKind::from_raw(nix::libc::SIGTSTP))?;
    let scope = Scope { namespace };
    let server = match &scope.namespace {
        Some(namespace) => format!("{server}, namespace {namespace}"),
        None => server.to_owned(),
    };
    let theme = Theme {
        has_colors: !is_set("NO_COLOR"),
    };
    let tasks = Tasks::new();
    let mut checks = checks(client, &scope, &tasks);
    let mut live = Live::new(client, scope, clock, Status::new(&server), Screen::new(table));
    let mut changed_rx = live.changes.subscribe();
    let mut redraws = tokio::time::interval(REDRAW_PERIOD);
    redraws.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut refreshes = tokio::time::interval(CHANGE_DELAY);
    refreshes.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut has_changes = false;
    let mut session = Session::start()?;
    let mut events = EventStream::new();
    let outcome = loop {
        let screen = &mut live.screen;
        session.draw(|buffer| draw(buffer, &live.view, screen, &live.status, theme))?;
        let effect = tokio::select! {
            event = events.next() => match event {
                Some(event) => live.handle(&event?),
                // The terminal was closed.
                None => Effect::Quit,
            },
            _ = changed_rx.changed() => {
                has_changes = true;
                continue;
            }
            _ = refreshes.tick(), if has_changes => {
                has_changes = false;
                live.refresh();
                Effect::Continue
            }
            _ = redraws.tick() => {
                live.refresh();
                Effect::Continue
            }
            Some(checked) = checks.recv() => {
                live.check(checked);
                Effect::Continue
            }
            _ = suspends.recv() => Effect::Suspend,
            () = ends.next() => Effect::Quit,
            () = panicked() => break Err(ShowError::Panicked),
        };
        match effect {
            Effect::Continue => {}
            Effect::Quit => break Ok(()),
            Effect::Redraw => session.clear()?,
            Effect::Suspend => session.suspend()?,
        }
    };
    tasks.cancel();
    outcome
}

/// Signals that end the process: SIGTERM, SIGINT, and SIGHUP, which a closed terminal sends.
struct Ends([Signal; 3]);

impl Ends {
    fn new() -> io::Result<Self> {
        Ok(Self([
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    async fn next(&mut self) {
        let [terminate, interrupt, hangup] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// Starts the checks of the API server.
fn checks(client: &Client, scope: &Scope, tasks: &Tasks) -> tokio::sync::mpsc::Receiver<Checked> {
    let (checked_tx, checked_rx) = tokio::sync::mpsc::channel(1);
    let (client, scope, stop) = (client.clone(), scope.clone(), tasks.stop_token());
    tasks.spawn_detached(async move {
        let mut period = tokio::time::interval(CHECK_PERIOD);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = period.tick() => {}
            }
            let checked = check(&client, &scope).await;
            if checked_tx.send(checked).await.is_err() {
                return;
            }
        }
    });
    checked_rx
}

/// State of the live view.
struct Live {
    client: Client,
    scope: Scope,
    clock: Clock,
    changes: Changes,
    watches: Watches,
    status: Status,
    screen: Screen,
    view: View,
    /// Time of the last successful check.
    last_check: Option<Timestamp>,
}

impl Live {
    fn new(client: &Client, scope: Scope, clock: &Clock, status: Status, screen: Screen) -> Self {
        let changes = Changes::new();
        let watches = Watches::start(client, &scope, clock, &changes);
        Self {
            view: View::new(&watches.objects(), Vec::new(), clock.now()),
            client: client.clone(),
            scope,
            clock: clock.clone(),
            changes,
            watches,
            status,
            screen,
            last_check: None,
        }
    }

    /// Computes the view from the watched objects. Objects that are still being read again do not
    /// replace older ones.
    fn refresh(&mut self) {
        let now = self.clock.now();
        let is_loaded = self.watches.is_loaded(&self.status.problems);
        if is_loaded {
            self.status.loaded();
        }
        if self.status.is_stale() {
            self.view.time = now;
            return;
        }
        let mut problems = self.status.problems.clone();
        problems.extend(self.watches.problems());
        self.view = View::new(&self.watches.objects(), problems, now);
    }

    fn check(&mut self, checked: Checked) {
        let answers = matches!(checked, Checked::Answers { .. });
        let reaction = self.status.checked(checked, self.last_check);
        if reaction == Reaction::ReadAgain {
            self.watches = Watches::start(&self.client, &self.scope, &self.clock, &self.changes);
        }
        if answers {
            self.last_check = Some(self.clock.now());
        }
        self.refresh();
    }

    fn handle(&mut self, event: &Event) -> Effect {
        match event {
            Event::Key(key) => match Key::new(key) {
                Some(key) => self.screen.press(key, &self.view),
                None => Effect::Continue,
            },
            // A resize needs a draw only, and every event causes one.
            Event::Resize(..) | Event::FocusGained | Event::FocusLost | Event::Mouse(_) | Event::Paste(_) => {
                Effect::Continue
            }
        }
    }
}
