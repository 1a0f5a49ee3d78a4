//! Faults take effect and end.

use std::time::Duration;

use super::event::{Event, Reader};
use super::fault::{Fault, FaultSpec};
use super::leaders::PAUSED_LEAST;
use super::run::Run;
use super::worker::End;
use rooflet_api::v1alpha1::FleetNode;
use rooflet_controller::intent::Version;

/// Faults of one kind may overlap: it is over when the last one is.
fn count(faults: &mut u32, begins: bool) {
    *faults = if begins { *faults + 1 } else { *faults - 1 };
}

impl Run<'_> {
    pub(super) fn fault_begins(&mut self, index: usize) {
        let fault = self.faults[index].clone();
        self.ledger
            .tell(self.now, || format!("fault begins: {:?}", fault.what));
        self.active.push(index);
        self.fault(index, true);
        let lasts = match matches!(fault.what, Fault::PausedLeader {}) {
            true => fault.lasts.max(PAUSED_LEAST),
            false => fault.lasts,
        };
        self.after(lasts, Event::FaultEnds { index });
    }

    pub(super) fn fault_ends(&mut self, index: usize) {
        let fault = self.faults[index].clone();
        self.ledger
            .tell(self.now, || format!("fault ends: {:?}", fault.what));
        self.active.retain(|one| *one != index);
        self.fault(index, false);
    }

    /// Of the faults of one kind that are on, the strongest shows.
    fn strongest(&self, like: &FaultSpec, otherwise: f64) -> f64 {
        let active = self.active.iter().map(|index| &self.faults[*index]);
        let alike = active.filter(|fault| fault.is_like(like));
        alike.map(|fault| fault.strength()).fold(otherwise, f64::max)
    }

    /// A fault begins, or is over.
    fn fault(&mut self, index: usize, begins: bool) {
        let fault = &self.faults[index].clone();
        let node = fault
            .node()
            .and_then(|name| self.by_name.get(name).copied())
            .unwrap_or_default();
        match &fault.what {
            Fault::Crash { .. } => {
                count(&mut self.nodes[node].unpowered, begins);
                if begins {
                    let keys: Vec<_> = self.nodes[node].workers.keys().cloned().collect();
                    for key in keys {
                        self.worker_ends(node, &key, End::PowerLost);
                    }
                }
                self.agent_ends_or_begins(node, begins);
            }
            Fault::AgentRestart { .. } => {
                count(&mut self.nodes[node].agent_down, begins);
                self.agent_ends_or_begins(node, begins);
            }
            Fault::WorkerCrash { .. } => {
                let first = self.nodes[node].workers.keys().next().cloned();
                if let Some(key) = first.filter(|_| begins) {
                    self.worker_ends(node, &key, End::Crashed);
                }
            }
            Fault::Cut { .. } => {
                count(&mut self.nodes[node].cut, begins);
                self.connection_changed(node);
            }
            Fault::Isolate { .. } => {
                count(&mut self.nodes[node].isolated, begins);
                self.connection_changed(node);
            }
            Fault::SlowDisk { .. } => self.nodes[node].slow_disk = self.strongest(fault, 1.0),
            Fault::Thermal { .. } => {
                self.nodes[node].thermal = self.strongest(fault, 1.0);
                self.wake_agent(node);
            }
            Fault::OnBattery { .. } => {
                count(&mut self.nodes[node].on_battery, begins);
                self.wake_agent(node);
            }
            Fault::LidClosed { .. } => {
                count(&mut self.nodes[node].lid_closed, begins);
                self.wake_agent(node);
            }
            Fault::UserPresent { .. } => {
                count(&mut self.nodes[node].user_present, begins);
                self.wake_agent(node);
            }
            // Refused before the run: see `Scenario::check_modelled`.
            Fault::WiredLeak { .. } | Fault::KernelPanic { .. } => {}
            Fault::MemoryTaken { .. } => {
                self.nodes[node].memory_taken = self.strongest(fault, 0.0);
                self.wake_agent(node);
            }
            Fault::ClockSkew { seconds, .. } => {
                self.nodes[node].clock_skew = if begins { *seconds } else { 0 };
                self.wake_agent(node);
            }
            Fault::StaleController {} if begins => self.controller_goes_stale(),
            Fault::StaleController {} => self.controller_hears_again(),
            Fault::StaleGateway {} => {
                count(&mut self.front.stale, begins);
                self.deliver_all(Reader::Gateway);
            }
            Fault::Relist {} => {
                if begins {
                    let (reader, life) = (Reader::Controller, self.control.life);
                    self.after(Duration::ZERO, Event::List { reader, life });
                }
            }
            Fault::ControllerRestart {} => {
                count(&mut self.control.down, begins);
                self.start_controller();
            }
            Fault::LostWrites { .. } => {
                self.lost_share = self.strongest(fault, 0.0);
                self.control.hinder(self.now);
            }
            Fault::RepeatedEvents { .. } => self.disorder.repeated = self.strongest(fault, 0.0),
            Fault::ReorderedEvents { .. } => self.disorder.reordered = self.strongest(fault, 0.0),
            Fault::StoreCrash {} if begins => self.store_crashes(),
            Fault::StoreCrash {} => self.store_comes_back(),
            Fault::PausedLeader {} if begins => self.leader_pauses(index),
            Fault::PausedLeader {} => self.leader_wakes(index),
            Fault::SlowNetwork { .. } => {
                let slow = self.strongest(fault, 1.0);
                if slow < self.slow_network {
                    self.slower_until = Some((self.slow_network, self.now));
                }
                self.slow_network = slow;
                self.control.hinder(self.now);
            }
            Fault::DeleteNode { node } => {
                let found = self.store.nodes.get(&(None, node.clone())).cloned();
                if let Some(found) = found.filter(|_| begins && !self.is_out()) {
                    let now = self.clock();
                    drop(self.store.delete::<FleetNode>(&Version::of(found.as_ref()), now));
                }
            }
        }
    }

    /// Where its process ends, what it was doing is never answered.
    fn agent_ends_or_begins(&mut self, node: usize, ends: bool) {
        if ends {
            self.nodes[node].life += 1;
            self.connection_changed(node);
        } else if self.nodes[node].agent_runs() {
            self.start_agent(node);
        }
    }
}
