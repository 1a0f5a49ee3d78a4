//! Lines about one object. The module is pure.

mod wrap;

use jiff::Timestamp;

use crate::age::age;
use crate::table::Table;
use crate::table_kind::TableKind;
use crate::view::format::{bandwidth, gibibytes, memory, rate, seconds};
use crate::view::{Condition, DeploymentRow, MacRow, ReplicaRow, Requests, Speed, View};

/// Maximum number of events of an object.
const MAX_EVENTS: usize = 20;
/// Width of the names of fields.
const NAME_WIDTH: usize = 24;

/// Line about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    Heading(String),
    Text(String),
}

/// Lines about one object, wrapped to a width.
#[derive(Debug, Clone)]
pub(crate) struct Details {
    pub(crate) title: String,
    pub(crate) lines: Vec<Line>,
    width: usize,
}

impl Details {
    /// Returns the lines about the object `id` of a table.
    pub(crate) fn new(view: &View, table: TableKind, id: &str, width: usize) -> Self {
        let mut details = Self::with_title(&format!("{} {id}", kind(table)), width);
        let found = match table {
            TableKind::Macs => view.macs.iter().find(|mac| mac.name == id).map(|mac| {
                details.add_mac(mac);
                details.add_replicas(view, |replica| replica.node.as_deref() == Some(mac.name.as_str()));
                details.add_conditions(&mac.conditions, view.time);
                details.add_events(view, &format!("mac/{}", mac.name), None);
            }),
            TableKind::Replicas => view.replicas.iter().find(|one| one.id() == id).map(|replica| {
                details.add_replica(replica);
                details.add_conditions(&replica.conditions, view.time);
                details.add_events(view, &format!("mrep/{}", replica.name), Some(&replica.namespace));
            }),
            TableKind::Deployments => view
                .deployments
                .iter()
                .find(|one| one.id() == id)
                .map(|deployment| {
                    details.add_deployment(deployment);
                    details.add_replicas(view, |replica| {
                        replica.namespace == deployment.namespace
                            && replica.deployment.as_ref() == Some(&deployment.name)
                    });
                    details.add_conditions(&deployment.conditions, view.time);
                    details.add_events(
                        view,
                        &format!("mdep/{}", deployment.name),
                        Some(&deployment.namespace),
                    );
                }),
            TableKind::Events => view.events.iter().find(|one| one.id == id).map(|event| {
                details.title = format!("Event {}", event.id);
                details.add("Object", &event.object);
                details.add("Namespace", &event.namespace);
                details.add("Type", &event.kind);
                details.add("Reason", &event.reason);
                details.add("Count", &event.count.to_string());
                details.add(
                    "Last",
                    &event.time.map_or_else(unknown, |time| at(time, view.time)),
                );
                details.heading("Message");
                details.text(&event.message, 0);
            }),
        };
        if found.is_none() {
            details.text(
                "The object no longer exists. Press Esc to return to the table.",
                0,
            );
        }
        details
    }

    pub(crate) fn with_title(title: &str, width: usize) -> Self {
        Self {
            title: title.to_owned(),
            lines: Vec::new(),
            width,
        }
    }

    pub(crate) fn heading(&mut self, text: &str) {
        if !self.lines.is_empty() {
            self.lines.push(Line::Text(String::new()));
        }
        self.lines.push(Line::Heading(text.to_owned()));
    }

    pub(crate) fn text(&mut self, text: &str, indent: usize) {
        let lines = wrap::wrap(text, self.width, indent);
        self.lines.extend(lines.into_iter().map(Line::Text));
    }

    pub(crate) fn add(&mut self, name: &str, value: &str) {
        let value = if value.trim().is_empty() { "-" } else { value };
        self.text(&format!("{name:<NAME_WIDTH$}{value}"), NAME_WIDTH);
    }

    fn add_mac(&mut self, mac: &MacRow) {
        self.add("Status", &mac.status());
        self.add("Chip", &mac.chip());
        self.add("System", &mac.operating_system);
        self.add("Engine", &mac.engine);
        self.add("Agent", &mac.agent_version);
        self.add(
            "Memory reserved",
            &mac.memory.map_or_else(unknown, |usage| {
                format!("{} of the allocatable memory", memory(usage))
            }),
        );
        self.add(
            "Bandwidth reserved",
            &mac.bandwidth.map_or_else(
                || "- (not measured)".to_owned(),
                |usage| format!("{} of the measured bandwidth", bandwidth(usage)),
            ),
        );
        self.add(
            "Bandwidth of data sheet",
            &mac.nominal_bandwidth
                .map_or_else(unknown, |rate| format!("{:.0}GB/s (not measured)", rate / 1e9)),
        );
        self.add_requests(mac.requests);
    }

    fn add_replica(&mut self, replica: &ReplicaRow) {
        let or_unknown = |text: &Option<String>| text.clone().unwrap_or_else(unknown);
        self.add("Phase", &replica.phase);
        self.add("Model", &replica.model);
        self.add("Deployment", &or_unknown(&replica.deployment));
        self.add("Revision", &or_unknown(&replica.revision));
        let node = or_unknown(&replica.node);
        self.add(
            "Node",
            &if replica.simulated {
                format!("{node} (simulated)")
            } else {
                node
            },
        );
        self.add("Restarts", &replica.restarts.to_string());
        self.add(
            "Memory reserved",
            &replica.reserved_memory.map_or_else(unknown, gibibytes),
        );
        if let Some(share) = replica.download {
            self.add("Download", &format!("{:.0}%", share * 100.0));
        }
        self.add_speed("Tok/s of one stream", &replica.tokens_per_second, rate);
        self.add_speed(
            "Time to first token",
            &replica.time_to_first_token_seconds,
            seconds,
        );
        self.add_requests(replica.requests);
        if !replica.refusals.is_empty() {
            self.heading("Reasons for rejection");
            for refusal in &replica.refusals {
                self.text(refusal, 2);
            }
        }
    }

    fn add_deployment(&mut self, deployment: &DeploymentRow) {
        self.add("Model", &deployment.model);
        self.add(
            "Replicas",
            &format!(
                "{} ready, {} desired, {} of the newest revision",
                deployment.ready_replicas, deployment.desired_replicas, deployment.updated_replicas
            ),
        );
        self.add("Paused", if deployment.paused { "yes" } else { "no" });
        self.add_speed("Tok/s of one stream", &deployment.tokens_per_second, rate);
        self.add_speed(
            "Time to first token",
            &deployment.time_to_first_token_seconds,
            seconds,
        );
        self.add_requests(deployment.requests);
    }

    fn add_speed(&mut self, name: &str, speed: &Speed, show: impl Fn(f64) -> String) {
        let text = |value: Option<f64>| value.map_or_else(unknown, &show);
        let basis = speed.predicted_basis.as_ref();
        let basis = basis.map_or_else(String::new, |basis| format!(" (basis: {basis})"));
        self.add(
            name,
            &format!(
                "predicted {}{basis}, measured {}",
                text(speed.predicted),
                text(speed.measured)
            ),
        );
    }

    fn add_requests(&mut self, requests: Option<Requests>) {
        let text = requests.map_or_else(unknown, |requests| {
            format!(
                "{} running, {} waiting, {} completed, {} failed",
                requests.running, requests.waiting, requests.completed, requests.failed
            )
        });
        self.add("Requests", &text);
    }

    fn add_replicas(&mut self, view: &View, is_part: impl Fn(&ReplicaRow) -> bool) {
        let of_object = view.replicas.iter().filter(|replica| is_part(replica));
        let ids: Vec<String> = of_object.map(ReplicaRow::id).collect();
        let all = view.table(TableKind::Replicas);
        let table = Table {
            columns: all.columns,
            rows: all.rows.into_iter().filter(|row| ids.contains(&row.id)).collect(),
        };
        self.heading("Replicas");
        match table.text() {
            // Long lines are cut, so that columns stay aligned.
            Some(text) => self
                .lines
                .extend(text.lines().map(|line| Line::Text(line.to_owned()))),
            None => self.text("none", 0),
        }
    }

    fn add_conditions(&mut self, conditions: &[Condition], now: Timestamp) {
        self.heading("Conditions");
        for condition in conditions {
            let Condition {
                kind,
                status,
                reason,
                message,
                last_transition_time,
            } = condition;
            let since = age(*last_transition_time, now);
            self.text(&format!("{kind}={status} {reason} ({since}) {message}"), 2);
        }
        if conditions.is_empty() {
            self.text("none", 0);
        }
    }

    fn add_events(&mut self, view: &View, object: &str, namespace: Option<&str>) {
        self.heading("Events");
        let is_about = |event: &&crate::view::EventRow| {
            event.object == object && namespace.is_none_or(|namespace| event.namespace == namespace)
        };
        let mut events = view.events.iter().filter(is_about).take(MAX_EVENTS).peekable();
        if events.peek().is_none() {
            self.text("none", 0);
        }
        for event in events {
            let since = event.time.map_or_else(unknown, |time| age(time, view.time));
            self.text(&format!("{since:>6}  {} {}", event.reason, event.message), 8);
        }
    }
}

fn kind(table: TableKind) -> &'static str {
    match table {
        TableKind::Macs => "Mac",
        TableKind::Replicas => "Replica",
        TableKind::Deployments => "Deployment",
        TableKind::Events => "Event",
    }
}

fn unknown() -> String {
    "-".to_owned()
}

/// Formats a time with its age.
fn at(time: Timestamp, now: Timestamp) -> String {
    format!("{} ({} ago)", time.strftime("%Y-%m-%dT%H:%M:%SZ"), age(time, now))
}
