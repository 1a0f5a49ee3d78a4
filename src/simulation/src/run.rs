//! One run: the whole state, the loop over events, and the network between the parts.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::ResourceExt;

use super::control::Control;
use super::disorder::Disorder;
use super::disruption::Taken;
use super::event::{Actor, Answer, Event, Loop, Queue, Reader, Write};
use super::fault::FaultSpec;
use super::gateway::Front;
use super::journal::{told_actor, told_write};
use super::leaders::Paused;
use super::machine::machines;
use super::node::Node;
use super::outcome::{Ledger, Outcome, Totals};
use super::planted::{Bug, Planted};
use super::policy::Policy;
use super::random::Random;
use super::rules::{Rules, Violation};
use super::scenario::{Scenario, ScenarioError};
use super::store::{Kind, Object, Store};
use rooflet_api::v1alpha1::{ModelDeployment, ModelDeploymentSpec};
use rooflet_base::clock::Clock;
use rooflet_client::wait_after;
use rooflet_controller::intent::Intent;

/// How one run differs from others of the same scenario.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    pub seed: u64,
    pub policy: Policy,
    /// Instead of the scenario's faults, written or drawn.
    pub faults: Option<Vec<FaultSpec>>,
    /// Write down what happens.
    pub journal: bool,
    pub(super) planted: Planted,
}

impl RunOptions {
    pub fn new(seed: u64, policy: Policy) -> Self {
        Self {
            seed,
            policy,
            ..Self::default()
        }
    }
}

/// The rules that only time can break are looked at this often.
const LOOK: Duration = Duration::from_secs(10);
/// How long it takes to notice that nobody answers.
const NO_ANSWER: Duration = Duration::from_secs(1);

/// Writes of one actor, one after the other.
#[derive(Debug, Default)]
pub(super) struct Writer {
    pub(super) queue: VecDeque<Write>,
    /// A pass has begun, and its last write is not answered yet.
    pub(super) busy: bool,
    /// What it decides by has changed since the pass began.
    pub(super) dirty: bool,
    pub(super) failed: bool,
    /// What it writes takes replicas away within a deployment's bounds.
    pub(super) disrupts: bool,
    /// What its writes were decided on was known then.
    pub(super) decided: Duration,
    failures: u32,
    /// When the next pass is due.
    pub(super) wakes: Option<Duration>,
}

impl Writer {
    /// How long to wait after one more failure.
    pub(super) fn backoff(&mut self) -> Duration {
        self.failures += 1;
        wait_after(self.failures)
    }
}

/// See the module.
pub(super) struct Run<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) policy: Policy,
    pub(super) planted: Planted,
    pub(super) now: Duration,
    /// What monotonic clocks show at the start; only differences matter.
    pub(super) origin: Instant,
    pub(super) queue: Queue,
    pub(super) network: Random,
    pub(super) store: Store,
    pub(super) control: Control,
    pub(super) paused: Vec<Paused>,
    pub(super) nodes: Vec<Node>,
    pub(super) by_name: BTreeMap<String, usize>,
    pub(super) front: Front,
    pub(super) faults: Vec<FaultSpec>,
    /// Those that are on, by their place in `faults`.
    pub(super) active: Vec<usize>,
    pub(super) rules: Rules,
    pub(super) ledger: Ledger,
    pub(super) lost_share: f64,
    pub(super) slow_network: f64,
    /// What it was before, where it was more, and until when.
    pub(super) slower_until: Option<(f64, Duration)>,
    pub(super) disorder: Disorder,
    /// Faults that keep the API server away, and when it was gone last.
    pub(super) outages: u32,
    pub(super) crashed: Option<Duration>,
    /// What of the last writes is on disk.
    pub(super) disk: Random,
    processes: u64,
}

/// Simulates, until the end or the first broken rule.
pub fn simulate(scenario: &Scenario, options: &RunOptions) -> Result<Outcome, ScenarioError> {
    let mut run = Run::new(scenario, options)?;
    run.begin();
    let mut events = 0_u64;
    let mut look = Duration::ZERO;
    while let Some((at, event)) = run.queue.pop() {
        if at > scenario.duration || run.rules.broken() {
            break;
        }
        run.now = at;
        events += 1;
        if at >= look {
            run.check_silent_nodes();
            look = at + LOOK;
        }
        run.handle(event);
        run.propagate();
    }
    run.now = scenario.duration;
    if !run.rules.broken() {
        run.check_end();
    }
    let violation = run.rules.take();
    let faults = std::mem::take(&mut run.faults);
    let Run {
        ledger,
        store,
        control,
        nodes,
        ..
    } = run;
    let totals = Totals {
        nodes: nodes.len(),
        events,
        passes: control.passes,
        writes: store.writes,
    };
    Ok(ledger.close(scenario, options, totals, faults, violation))
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario, options: &RunOptions) -> Result<Self, ScenarioError> {
        let machines = machines(scenario)?;
        let names: Vec<_> = machines.iter().map(|machine| machine.name.clone()).collect();
        let faults = options.faults.clone().unwrap_or_else(|| {
            let mut faults = scenario.planned_faults();
            let random = scenario.random_faults.as_ref();
            faults.extend(
                random
                    .map(|random| random.draw(options.seed, &names))
                    .into_iter()
                    .flatten(),
            );
            faults
        });
        Ok(Self {
            scenario,
            policy: options.policy,
            planted: options.planted,
            now: Duration::ZERO,
            origin: Clock::System.instant(),
            queue: Queue::default(),
            network: Random::stream(options.seed, "network"),
            store: Store::new(options.seed),
            control: Control::default(),
            paused: Vec::new(),
            by_name: names
                .into_iter()
                .enumerate()
                .map(|(index, name)| (name, index))
                .collect(),
            nodes: machines.into_iter().map(Node::new).collect(),
            front: Front::new(scenario, options.seed),
            faults,
            active: Vec::new(),
            rules: Rules::default(),
            ledger: Ledger::new(scenario, options.journal),
            lost_share: 0.0,
            slow_network: 1.0,
            slower_until: None,
            disorder: Disorder::new(options.seed),
            outages: 0,
            crashed: None,
            disk: Random::stream(options.seed, "disk"),
            processes: 0,
        })
    }

    fn begin(&mut self) {
        for (index, fault) in self.faults.iter().enumerate() {
            self.queue.push(fault.at, Event::FaultBegins { index });
        }
        for (index, change) in self.scenario.changes.iter().enumerate() {
            self.queue.push(change.at, Event::Change { index });
        }
        self.start_controller();
        for node in 0..self.nodes.len() {
            self.start_agent(node);
        }
        for deployment in &self.scenario.deployments {
            let spec: ModelDeploymentSpec =
                serde_json::from_value(self.policy.placed(deployment.spec.clone()))
                    .expect("the schema has let it through");
            let mut object = ModelDeployment::new(&deployment.name, spec);
            object.metadata.namespace = Some("default".to_owned());
            let created = self.store.create(object, self.clock());
            debug_assert!(created.is_ok(), "names are checked");
        }
        self.propagate();
        self.told(self.store.newest());
        for demand in 0..self.scenario.demand.len() {
            self.next_request(demand);
        }
    }

    /// Wall-clock time where clocks are right.
    pub(super) fn clock(&self) -> Timestamp {
        self.scenario.start + self.now
    }

    pub(super) fn after(&mut self, wait: Duration, event: Event) {
        self.queue.push(self.now + wait, event);
    }

    pub(super) fn latency(&mut self) -> Duration {
        let network = &self.scenario.network;
        self.network
            .between(network.shortest, network.longest)
            .mul_f64(self.slow_network)
    }

    pub(super) fn next_process(&mut self) -> u64 {
        self.processes += 1;
        self.processes
    }

    pub(super) fn break_rule(&mut self, rule: &'static str, message: String) {
        let at = self.now;
        self.rules.broke(Violation { at, rule, message });
    }

    fn handle(&mut self, event: Event) {
        self.rules.by_former_leader = false;
        match event {
            Event::Deliver { to, kind } => self.deliver(to, kind),
            Event::List { reader, life } => self.list(reader, life),
            Event::Pass { of, life } => self.pass(of, life),
            Event::Sync { node, life } => self.sync(node, life),
            Event::Report { actor, life } => self.report(actor, life),
            Event::Arrive { actor, life, write } => self.arrive(actor, life, write),
            Event::Answered {
                actor,
                life,
                arrived,
                write,
                answer,
            } => {
                let answer = self.heard(arrived, &write, *answer);
                self.answered(actor, life, *write, answer);
            }
            Event::Worker {
                node,
                key,
                process,
                step,
            } => self.worker_step(node, &key, process, step),
            Event::Request { demand } => self.request(demand),
            Event::FirstToken {
                node,
                key,
                process,
                request,
            } => self.first_token(node, &key, process, request),
            Event::Finish {
                node,
                key,
                process,
                request,
            } => self.finish(node, &key, process, request),
            Event::Impatient {
                node,
                key,
                process,
                request,
            } => self.impatient(node, &key, process, request),
            Event::TurnMissed { request } => self.turn_missed(request),
            Event::FaultBegins { index } => self.fault_begins(index),
            Event::FaultEnds { index } => self.fault_ends(index),
            Event::Change { index } => self.change(index),
            Event::CollectGarbage => self.collect_garbage(),
        }
    }

    /// Puts what was just written on its way to everybody who watches it, and holds it against the rules.
    fn propagate(&mut self) {
        for change in self.store.take_changes() {
            self.check_change(&change);
            self.ledger.note(self.now, &change);
            let (object, gone) = (change.object, change.gone);
            let kind = object.kind();
            for to in [Reader::Controller, Reader::Gateway] {
                if to == Reader::Gateway && kind == Kind::Revision {
                    continue;
                }
                self.send_to(to, object.clone(), gone);
            }
            let node = match &object {
                Object::Node(node) => node.name_any(),
                Object::Replica(replica) => replica.spec.node_name.clone().unwrap_or_default(),
                Object::Revision(_) => continue,
                Object::Deployment(_) => {
                    if gone {
                        let wait = self.latency();
                        self.after(wait, Event::CollectGarbage);
                    }
                    continue;
                }
            };
            if let Some(index) = self.by_name.get(&node) {
                self.send_to(Reader::Agent(*index), object, gone);
            }
        }
    }

    fn deliver(&mut self, to: Reader, kind: Kind) {
        let now = self.now;
        let old_too = self.planted.has(Bug::OlderEventApplied);
        match to {
            Reader::Controller => {
                if self.control.hears()
                    && let Some(newest) = self.control.view.deliver(kind, now, old_too)
                {
                    self.told(newest);
                    self.wake_controller();
                }
            }
            Reader::Gateway => {
                if self.front.stale == 0
                    && let Some(newest) = self.front.view.deliver(kind, now, old_too)
                {
                    self.told(newest);
                    self.front.changed = true;
                    if self.somebody_waits() {
                        self.gateway_looks();
                    }
                }
            }
            Reader::Agent(node) => {
                if self.nodes[node].is_connected()
                    && let Some(newest) = self.nodes[node].view.deliver(kind, now, old_too)
                {
                    self.told(newest);
                    self.wake_agent(node);
                }
            }
        }
    }

    /// After a time without: everything that has arrived in between.
    pub(super) fn deliver_all(&mut self, to: Reader) {
        for kind in Kind::ALL {
            self.deliver(to, kind);
        }
    }

    /// What a watch that begins anew is told first.
    pub(super) fn listed(&mut self, to: Reader) -> Vec<Object> {
        self.told(self.store.newest());
        let store = &self.store;
        let nodes = store.nodes.values().cloned().map(Object::Node);
        let replicas = store.replicas.values().cloned().map(Object::Replica);
        match to {
            Reader::Controller | Reader::Gateway => nodes
                .chain(replicas)
                .chain(store.deployments.values().cloned().map(Object::Deployment))
                .chain(store.revisions.values().cloned().map(Object::Revision))
                .collect(),
            Reader::Agent(index) => {
                let name = &self.nodes[index].machine.name;
                let is_ours = |object: &Object| match object {
                    Object::Node(node) => node.name_any() == *name,
                    Object::Replica(replica) => replica.spec.node_name.as_ref() == Some(name),
                    Object::Deployment(_) | Object::Revision(_) => false,
                };
                nodes.chain(replicas).filter(is_ours).collect()
            }
        }
    }

    fn list(&mut self, reader: Reader, life: u32) {
        match reader {
            Reader::Controller => self.controller_lists(life),
            Reader::Gateway => self.gateway_lists(),
            Reader::Agent(node) => self.agent_lists(node, life),
        }
    }

    pub(super) fn life(&self, actor: Actor) -> u32 {
        match actor {
            Actor::Loop(_) => self.control.life,
            Actor::Replicas(node) | Actor::Node(node) => self.nodes[node].life,
        }
    }

    pub(super) fn writer(&mut self, actor: Actor) -> &mut Writer {
        match actor {
            Actor::Loop(of) => self.control.writer(of),
            Actor::Replicas(node) => &mut self.nodes[node].replica_writer,
            Actor::Node(node) => &mut self.nodes[node].node_writer,
        }
    }

    /// Begins to do what a pass has decided.
    pub(super) fn start_writing(&mut self, actor: Actor, writes: impl IntoIterator<Item = Write>) {
        let life = self.life(actor);
        let known = match actor {
            Actor::Loop(_) => self.control.knows(self.now),
            Actor::Replicas(_) | Actor::Node(_) => self.now,
        };
        let writer = self.writer(actor);
        writer.decided = known;
        writer.queue.extend(writes);
        writer.disrupts = writer.queue.iter().any(Write::disrupts);
        writer.busy = true;
        self.send(actor, life);
    }

    fn send(&mut self, actor: Actor, life: u32) {
        if self.life(actor) != life {
            return;
        }
        let Some(write) = self.writer(actor).queue.pop_front() else {
            self.pass_ends(actor, life);
            return;
        };
        let write = Box::new(write);
        let reaches = match actor {
            Actor::Loop(_) => true,
            Actor::Replicas(node) | Actor::Node(node) => self.nodes[node].is_connected(),
        };
        if !reaches || self.network.chance(self.lost_share / 2.0) {
            let answer = Box::new(Answer::Lost);
            let arrived = self.now;
            self.after(
                NO_ANSWER,
                Event::Answered {
                    actor,
                    life,
                    arrived,
                    write,
                    answer,
                },
            );
            return;
        }
        let wait = self.latency();
        self.after(wait, Event::Arrive { actor, life, write });
    }

    /// The write is at the server. Its sender may be gone by now.
    fn arrive(&mut self, actor: Actor, life: u32, write: Box<Write>) {
        let taken = Taken::by(self, &write);
        self.rules.by_former_leader = matches!(actor, Actor::Loop(_)) && self.life(actor) != life;
        let mut answer = match self.is_out() {
            true => Answer::Lost,
            false => self.apply(&write),
        };
        self.ledger.tell(self.now, || {
            format!("{}: {}", told_actor(actor), told_write(&write, &answer))
        });
        let mut wait = self.latency();
        let is_lost = self.network.chance(self.lost_share / 2.0) || self.is_out();
        if let (Actor::Loop(of), Some(taken), Answer::Done(_)) = (actor, taken, &answer)
            && self.control.life == life
        {
            self.check_taken(self.known_to(of), &taken, !is_lost);
        }
        let created = matches!(
            (&*write, &answer),
            (Write::Intent(Intent::CreateReplica(_), _), Answer::Done(_))
        );
        if created && (is_lost || self.life(actor) != life) {
            self.rules.creations_lost += 1;
        }
        if is_lost {
            answer = Answer::Lost;
            wait = NO_ANSWER;
        }
        let answer = Box::new(answer);
        let arrived = self.now;
        self.after(
            wait,
            Event::Answered {
                actor,
                life,
                arrived,
                write,
                answer,
            },
        );
    }

    fn answered(&mut self, actor: Actor, life: u32, write: Write, answer: Answer) {
        if self.life(actor) != life {
            return;
        }
        let forgets = self.planted.has(Bug::OwnWritesForgotten);
        if let Answer::Done(object) = &answer
            && !forgets
        {
            let view = match actor {
                Actor::Loop(_) => &mut self.control.view,
                Actor::Replicas(node) | Actor::Node(node) => &mut self.nodes[node].view,
            };
            view.wrote(object.clone());
        }
        match actor {
            Actor::Loop(of) => self.control_answered(of, &write, &answer),
            Actor::Replicas(_) | Actor::Node(_) => {
                // The watch shows the newer version soon, and it is done again.
                let failed = matches!(answer, Answer::Lost);
                self.writer(actor).failed |= failed;
            }
        }
        self.send(actor, life);
    }

    fn pass_ends(&mut self, actor: Actor, life: u32) {
        let writer = self.writer(actor);
        writer.busy = false;
        writer.disrupts = false;
        let wait = if std::mem::take(&mut writer.failed) {
            writer.dirty = true;
            Some(writer.backoff())
        } else {
            writer.failures = 0;
            writer.dirty.then_some(Duration::from_millis(1))
        };
        if let Some(wait) = wait {
            match actor {
                Actor::Loop(of) => self.wake_loop(of, wait),
                Actor::Replicas(_) | Actor::Node(_) => self.after(wait, Event::Report { actor, life }),
            }
        }
    }

    /// All reconcilers look again.
    pub(super) fn wake_controller(&mut self) {
        for of in Loop::ALL {
            if of == Loop::Autoscaler && !self.autoscaler_has_to_look() {
                continue;
            }
            self.control.writer(of).dirty = true;
            if !self.control.writer(of).busy {
                let wait = self.latency();
                self.wake_loop(of, wait);
            }
        }
    }
}
