//! One run: the world, the network and the rules, and the loop over events.

mod agent;
mod answer;
mod change;
mod checks;
mod control;
mod disruption;
mod gateway;
mod inject;
mod journal;
mod leaders;
mod outage;
mod promises;
mod report;
mod watches;
mod worker;
mod writes;

use crate::network::Network;
use crate::world::World;
use std::time::Duration;

use crate::options::RunOptions;
use crate::outcome::Outcome;
use crate::rules::Rules;
use crate::rules::ledger::{Ledger, Totals};
use crate::rules::violation::Violation;
use crate::scenario::{Scenario, ScenarioError};
use crate::world::event::Event;
use rooflet_api::v1alpha1::{ModelDeployment, ModelDeploymentSpec};

/// The rules that only time can break are looked at this often.
const LOOK: Duration = Duration::from_secs(10);

/// See the module.
pub(crate) struct Run<'a> {
    pub(crate) world: World<'a>,
    pub(crate) network: Network<'a>,
    pub(crate) rules: Rules,
}

/// Simulates, until the end or the first broken rule.
pub fn simulate(scenario: &Scenario, options: &RunOptions) -> Result<Outcome, ScenarioError> {
    let mut run = Run::new(scenario, options)?;
    run.begin();
    let mut events = 0_u64;
    let mut look = Duration::ZERO;
    while let Some((at, event)) = run.world.queue.pop() {
        if at > scenario.duration || run.rules.broken() {
            break;
        }
        run.world.now = at;
        events += 1;
        if at >= look {
            run.check_silent_nodes();
            look = at + LOOK;
        }
        run.handle(event);
        run.propagate();
    }
    run.world.now = scenario.duration;
    if !run.rules.broken() {
        run.check_end();
    }
    let violation = run.rules.take();
    let faults = std::mem::take(&mut run.world.faults);
    let Run { world, rules, .. } = run;
    let totals = Totals {
        nodes: world.nodes.len(),
        events,
        passes: world.control.passes,
        writes: world.store.writes,
    };
    Ok(rules.ledger.close(scenario, options, totals, faults, violation))
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario, options: &RunOptions) -> Result<Self, ScenarioError> {
        Ok(Self {
            world: World::new(scenario, options)?,
            network: Network::new(scenario, options.seed),
            rules: Rules::new(Ledger::new(scenario, options.journal)),
        })
    }
}

impl Run<'_> {
    fn begin(&mut self) {
        for (index, fault) in self.world.faults.iter().enumerate() {
            self.world.queue.push(fault.at, Event::FaultBegins { index });
        }
        for (index, change) in self.world.scenario.changes.iter().enumerate() {
            self.world.queue.push(change.at, Event::Change { index });
        }
        self.start_controller();
        for node in 0..self.world.nodes.len() {
            self.start_agent(node);
        }
        for deployment in &self.world.scenario.deployments {
            let spec: ModelDeploymentSpec =
                serde_json::from_value(self.world.policy.placed(deployment.spec.clone()))
                    .expect("the schema has let it through");
            let mut object = ModelDeployment::new(&deployment.name, spec);
            object.metadata.namespace = Some("default".to_owned());
            let created = self.world.store.create(object, self.world.clock());
            debug_assert!(created.is_ok(), "names are checked");
        }
        self.propagate();
        self.told(self.world.store.newest());
        for demand in 0..self.world.scenario.demand.len() {
            self.world.next_request(demand);
        }
    }

    pub(crate) fn break_rule(&mut self, rule: &'static str, message: String) {
        let at = self.world.now;
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
            } => self.world.first_token(node, &key, process, request),
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
}
