//! Injection of faults.

use std::time::Duration;

use crate::run::Run;
use crate::scenario::fault::{Fault, MIN_LEADER_PAUSE};
use crate::world::event::{Event, Reader};
use crate::world::worker::WorkerExit;
use rooflet_api::v1alpha1::FleetNode;
use rooflet_controller::intent::Version;

/// Counts active faults of a kind that may overlap.
fn count(faults: &mut u32, begins: bool) {
    *faults = if begins { *faults + 1 } else { *faults - 1 };
}

impl Run<'_> {
    pub(crate) fn fault_begins(&mut self, index: usize) {
        let fault = self.world.faults[index].clone();
        self.rules
            .ledger
            .log(self.world.now, || format!("fault begins: {:?}", fault.what));
        self.world.active.push(index);
        // The server observes all FleetNodes that exist before the fault.
        self.observe_access();
        self.apply_fault(index, true);
        self.observe_access();
        let lasts = match matches!(fault.what, Fault::PausedLeader {}) {
            true => fault.lasts.max(MIN_LEADER_PAUSE),
            false => fault.lasts,
        };
        self.world.after(lasts, Event::FaultEnds { index });
    }

    pub(crate) fn fault_ends(&mut self, index: usize) {
        let fault = self.world.faults[index].clone();
        self.rules
            .ledger
            .log(self.world.now, || format!("fault ends: {:?}", fault.what));
        self.world.active.retain(|one| *one != index);
        self.apply_fault(index, false);
        self.observe_access();
    }

    /// Applies the start or the end of a fault.
    fn apply_fault(&mut self, index: usize, begins: bool) {
        let fault = &self.world.faults[index].clone();
        let node = fault
            .node()
            .and_then(|name| self.world.by_name.get(name).copied())
            .unwrap_or_default();
        match &fault.what {
            Fault::Crash { .. } => {
                count(&mut self.world.nodes[node].unpowered, begins);
                if begins {
                    let keys: Vec<_> = self.world.nodes[node].workers.keys().cloned().collect();
                    for key in keys {
                        self.worker_exits(node, &key, WorkerExit::PowerLost);
                    }
                }
                self.stop_or_start_agent(node, begins);
            }
            Fault::AgentRestart { .. } => {
                count(&mut self.world.nodes[node].agent_down, begins);
                self.stop_or_start_agent(node, begins);
            }
            Fault::WorkerCrash { .. } => {
                let first = self.world.nodes[node].workers.keys().next().cloned();
                if let Some(key) = first.filter(|_| begins) {
                    self.worker_exits(node, &key, WorkerExit::Crashed);
                }
            }
            Fault::Cut { .. } => {
                count(&mut self.world.nodes[node].cut, begins);
                self.connection_changed(node);
            }
            Fault::Isolate { .. } => {
                count(&mut self.world.nodes[node].isolated, begins);
                self.connection_changed(node);
            }
            Fault::SlowDisk { .. } => self.world.nodes[node].slow_disk = self.world.strongest(fault, 1.0),
            Fault::Thermal { .. } => {
                self.world.nodes[node].thermal = self.world.strongest(fault, 1.0);
                self.world.wake_agent(node);
            }
            Fault::OnBattery { .. } => {
                count(&mut self.world.nodes[node].on_battery, begins);
                self.world.wake_agent(node);
            }
            Fault::LidClosed { .. } => {
                count(&mut self.world.nodes[node].lid_closed, begins);
                self.world.wake_agent(node);
            }
            Fault::UserPresent { .. } => {
                count(&mut self.world.nodes[node].user_present, begins);
                self.world.wake_agent(node);
            }
            // `Scenario::check_modelled` rejects these faults before the run.
            Fault::WiredLeak { .. } | Fault::KernelPanic { .. } => {}
            Fault::MemoryTaken { .. } => {
                self.world.nodes[node].memory_taken = self.world.strongest(fault, 0.0);
                self.world.wake_agent(node);
            }
            Fault::ClockSkew { seconds, .. } => {
                self.world.nodes[node].clock_skew = if begins { *seconds } else { 0 };
                self.world.wake_agent(node);
            }
            Fault::StaleController {} if begins => self.world.begin_stale_controller(),
            Fault::StaleController {} => self.end_stale_controller(),
            Fault::StaleGateway {} => {
                count(&mut self.world.gateway.stale, begins);
                self.deliver_all(Reader::Gateway);
            }
            Fault::Relist {} => {
                if begins {
                    let (reader, incarnation) = (Reader::Controller, self.world.control.incarnation);
                    self.world
                        .after(Duration::ZERO, Event::List { reader, incarnation });
                }
            }
            Fault::ControllerRestart {} => {
                count(&mut self.world.control.down, begins);
                self.start_controller();
            }
            Fault::LostWrites { .. } => {
                self.network.lost_share = self.world.strongest(fault, 0.0);
                self.world.control.mark_impaired(self.world.now);
            }
            Fault::RepeatedEvents { .. } => self.network.disorder.repeated = self.world.strongest(fault, 0.0),
            Fault::ReorderedEvents { .. } => {
                self.network.disorder.reordered = self.world.strongest(fault, 0.0)
            }
            Fault::StoreCrash {} if begins => self.crash_store(),
            Fault::StoreCrash {} => self.restart_store(),
            Fault::PausedLeader {} if begins => self.world.pause_leader(index),
            Fault::PausedLeader {} => self.resume_leader(index),
            Fault::SlowNetwork { .. } => {
                let slow = self.world.strongest(fault, 1.0);
                if slow < self.network.slow_network {
                    self.network.slower_until = Some((self.network.slow_network, self.world.now));
                }
                self.network.slow_network = slow;
                self.world.control.mark_impaired(self.world.now);
            }
            Fault::DeleteNode { node } => {
                let found = self.world.store.nodes.get(&(None, node.clone())).cloned();
                if let Some(found) = found.filter(|_| begins && !self.network.is_out()) {
                    let now = self.world.clock();
                    drop(
                        self.world
                            .store
                            .delete::<FleetNode>(&Version::of(found.as_ref()), now),
                    );
                }
            }
        }
    }

    /// Stops or starts an agent's process. A stopped agent receives no responses.
    fn stop_or_start_agent(&mut self, node: usize, ends: bool) {
        if ends {
            self.world.nodes[node].incarnation += 1;
            self.connection_changed(node);
        } else if self.world.nodes[node].agent_runs() {
            self.start_agent(node);
        }
    }
}
