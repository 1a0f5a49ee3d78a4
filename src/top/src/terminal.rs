//! The user's terminal: its modes while the view is shown, and their restoration.
//!
//! The modes are restored when the view ends, after a panic in any thread, and before the process is
//! suspended. Other output of the process would corrupt the screen: while the view is shown, standard
//! error is discarded if it is a terminal.

use std::fs::File;
use std::io::{self, IsTerminal as _, Stdout};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once};

use crossterm::cursor::Show;
use crossterm::execute;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use nix::sys::signal::{Signal, raise};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Position;
use tokio::sync::Notify;

use rooflet_base::environment::variable;
use rooflet_base::mutex::lock;

/// True while the modes of the terminal are changed.
static IS_ENTERED: AtomicBool = AtomicBool::new(false);
/// True after a panic.
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);
/// Notified after a panic.
static PANICKED: Notify = Notify::const_new();
/// Copy of standard error while it is discarded.
static STDERR: Mutex<Option<OwnedFd>> = Mutex::new(None);
static PANIC_HOOK: Once = Once::new();

/// Returns whether standard output is a terminal that can show the view.
pub fn is_interactive() -> bool {
    io::stdout().is_terminal() && variable("TERM").is_none_or(|kind| kind != "dumb")
}

/// Terminal that shows the view. Its former modes are restored when the value is dropped.
pub(crate) struct Session {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Session {
    /// Changes the modes of the terminal.
    pub(crate) fn start() -> io::Result<Self> {
        PANIC_HOOK.call_once(|| {
            let previous = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                HAS_PANICKED.store(true, Ordering::SeqCst);
                drop(leave());
                previous(info);
                PANICKED.notify_one();
            }));
        });
        let guard = Guard;
        enter()?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        std::mem::forget(guard);
        Ok(Self { terminal })
    }

    /// Draws the screen. `draw` returns the position of the cursor, if it is visible.
    pub(crate) fn draw(&mut self, draw: impl FnOnce(&mut Buffer) -> Option<Position>) -> io::Result<()> {
        if HAS_PANICKED.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.terminal.draw(|frame| {
            if let Some(position) = draw(frame.buffer_mut()) {
                frame.set_cursor_position(position);
            }
        })?;
        Ok(())
    }

    /// Draws every cell with the next [`Self::draw`].
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        self.terminal.clear()
    }

    /// Restores the terminal, stops the process until it is continued, and changes the modes again.
    pub(crate) fn suspend(&mut self) -> io::Result<()> {
        leave()?;
        raise(Signal::SIGSTOP)?;
        enter()?;
        self.clear()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(leave());
    }
}

/// Restores the terminal if the start of a session fails.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        drop(leave());
    }
}

/// Waits for a panic in any thread.
pub(crate) async fn panicked() {
    PANICKED.notified().await;
}

fn enter() -> io::Result<()> {
    IS_ENTERED.store(true, Ordering::SeqCst);
    if io::stderr().is_terminal() {
        let copy = nix::unistd::dup(io::stderr())?;
        let discarded = File::options().write(true).open("/dev/null")?;
        nix::unistd::dup2_stderr(&discarded)?;
        *lock(&STDERR) = Some(copy);
    }
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen)
}

/// Restores the modes of the terminal, if they are changed.
fn leave() -> io::Result<()> {
    if !IS_ENTERED.swap(false, Ordering::SeqCst) {
        return Ok(());
    }
    let screen = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let modes = disable_raw_mode();
    if let Some(stderr) = lock(&STDERR).take() {
        nix::unistd::dup2_stderr(&stderr)?;
    }
    screen.and(modes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Runs a shell script in a new terminal and returns the output of the terminal.
    fn in_terminal(script: &str) -> String {
        let mut command = Command::new("script");
        if cfg!(target_os = "macos") {
            command.args(["-q", "/dev/null", "sh", "-c", script]);
        } else {
            command.args(["-qec", script, "/dev/null"]);
        }
        let output = command.stdin(Stdio::null()).env("TERM", "xterm").output();
        let output = output.expect("`script` is installed");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs an ignored test of this module in a new terminal. Returns the modes before and after the
    /// test, and the output in between.
    fn run_child(name: &str) -> (String, String, String) {
        let test = std::env::current_exe().expect("a path");
        let child = format!(
            "{} --ignored --exact --nocapture terminal::tests::{name}",
            test.display()
        );
        let output = in_terminal(&format!("stty -g; echo START; {child} 2>&1; echo END; stty -g"));
        let (before, rest) = output.split_once("START").expect("the first modes");
        let (shown, after) = rest.rsplit_once("END").expect("the last modes");
        (
            before.trim().to_owned(),
            shown.to_owned(),
            after.trim().to_owned(),
        )
    }

    #[test]
    #[ignore = "runs in a terminal, as a child of another test"]
    fn child_panics_in_a_task() {
        let mut session = Session::start().expect("a terminal");
        session.draw(|_| None).expect("a terminal");
        let panicked = std::thread::spawn(|| panic!("on purpose")).join();
        assert!(panicked.is_err());
        // The terminal is restored: nothing is drawn any more.
        session
            .draw(|_| unreachable!("drawn after a panic"))
            .expect("a terminal");
    }

    #[test]
    #[ignore = "runs in a terminal, as a child of another test"]
    fn child_writes_to_standard_error() {
        let session = Session::start().expect("a terminal");
        eprintln!("hidden while the view is shown");
        drop(session);
        eprintln!("visible afterwards");
    }

    #[test]
    fn panic_restores_the_terminal_before_its_message_is_printed() {
        let (before, shown, after) = run_child("child_panics_in_a_task");
        assert!(!before.is_empty());
        assert_eq!(before, after);
        let (entered, restored) = shown.split_once("\u{1b}[?1049l").expect("the former screen");
        assert!(entered.contains("\u{1b}[?1049h"), "{shown:?}");
        assert!(restored.contains("on purpose"), "{shown:?}");
        assert!(restored.contains("\u{1b}[?25h"), "{shown:?}");
        assert!(restored.contains("test result: ok"), "{shown:?}");
        assert!(!restored.contains("\u{1b}[?1049"), "{shown:?}");
    }

    #[test]
    fn standard_error_does_not_reach_the_screen() {
        let (before, shown, after) = run_child("child_writes_to_standard_error");
        assert_eq!(before, after);
        assert!(!shown.contains("hidden"), "{shown:?}");
        assert!(shown.contains("visible afterwards"), "{shown:?}");
    }
}
