//! A run: the world, the network and the rules, and the loop over events.

mod access;
mod agent;
mod apply;
mod change;
mod control;
mod gateway;
mod inject;
mod journal;
mod leaders;
mod outage;
mod report;
mod trust;
mod watches;
mod worker;
mod writes;

use std::time::Duration;

use crate::network::Network;
use crate::options::RunOptions;
use crate::outcome::Outcome;
use crate::rules::Rules;
use crate::rules::access::AccessRules;
use crate::rules::ledger::{Ledger, Totals};
use crate::scenario::{Scenario, ScenarioError};
use crate::world::World;
use crate::world::event::Event;
use rooflet_api::v1alpha1::{ModelDeployment, ModelDeploymentSpec};

/// Period of the checks whose result can change without an event.
const CHECK_PERIOD: Duration = Duration::from_secs(10);

/// State of a run.
pub(crate) struct Run<'a> {
    pub(crate) world: World<'a>,
    pub(crate) network: Network<'a>,
    pub(crate) rules: Rules,
}

/// Simulates until the end of the scenario or the first violated invariant.
pub fn simulate(scenario: &Scenario, options: &RunOptions) -> Result<Outcome, ScenarioError> {
    let mut run = Run::new(scenario, options)?;
    run.start();
    let mut events = 0_u64;
    let mut next_check = Duration::ZERO;
    while let Some((at, event)) = run.world.queue.pop() {
        if at > scenario.duration || run.rules.is_violated() {
            break;
        }
        run.world.now = at;
        events += 1;
        if at >= next_check {
            run.rules.check_silent_nodes(&run.world, &run.network);
            next_check = at + CHECK_PERIOD;
        }
        run.handle(event);
        run.propagate();
    }
    run.world.now = scenario.duration;
    if !run.rules.is_violated() {
        run.rules.check_end(&run.world, &run.network);
    }
    let violation = run.rules.take_violation();
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
    pub(crate) fn new(scenario: &'a Scenario, options: &RunOptions) -> Result<Self, ScenarioError> {
        Ok(Self {
            world: World::new(scenario, options)?,
            network: Network::new(scenario, options.seed),
            rules: Rules::new(
                Ledger::new(scenario, options.journal),
                scenario
                    .access
                    .as_ref()
                    .map_or_else(AccessRules::default, |access| {
                        AccessRules::new(access.keys.len(), access.gateways)
                    }),
            ),
        })
    }
}

impl Run<'_> {
    pub(crate) fn start(&mut self) {
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
                    .expect("the spec is valid for the schema");
            let mut object = ModelDeployment::new(&deployment.name, spec);
            object.metadata.namespace = Some("default".to_owned());
            let created = self.world.store.create(object, self.world.clock());
            debug_assert!(created.is_ok(), "names of deployments are unique");
        }
        self.propagate();
        self.mark_observed(self.world.store.newest());
        for demand in 0..self.world.scenario.demand.len() {
            self.world.next_request(demand);
        }
        self.start_access();
    }

    pub(crate) fn handle(&mut self, event: Event) {
        self.rules.by_former_leader = false;
        match event {
            Event::Deliver { to, kind } => self.deliver(to, kind),
            Event::List { reader, incarnation } => self.list(reader, incarnation),
            Event::Pass { of, incarnation } => self.pass(of, incarnation),
            Event::Sync { node, incarnation } => self.sync(node, incarnation),
            Event::Report { actor, incarnation } => self.report(actor, incarnation),
            Event::Arrive {
                actor,
                incarnation,
                write,
            } => self.arrive(actor, incarnation, write),
            Event::Response {
                actor,
                incarnation,
                arrived,
                write,
                response,
            } => {
                let response = self.received_response(arrived, &write, *response);
                self.receive_response(actor, incarnation, *write, response);
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
            Event::WorkerQueueTimeout {
                node,
                key,
                process,
                request,
            } => self.worker_queue_timeout(node, &key, process, request),
            Event::GatewayQueueTimeout { request } => self.gateway_queue_timeout(request),
            Event::FaultBegins { index } => self.fault_begins(index),
            Event::FaultEnds { index } => self.fault_ends(index),
            Event::Change { index } => self.change(index),
            Event::CollectGarbage => self.collect_garbage(),
            Event::Access(event) => self.access(event),
        }
    }
}
