//! Faults take effect and end.

use super::event::{Event, Reader};
use super::fault::Fault;
use super::run::Run;
use super::worker::End;
use crate::api::v1alpha1::FleetNode;
use crate::controller::intent::Version;

impl Run<'_> {
    pub(super) fn fault_begins(&mut self, index: usize) {
        let fault = self.faults[index].clone();
        self.ledger
            .tell(self.now, || format!("fault begins: {:?}", fault.what));
        let node = fault
            .node()
            .and_then(|name| self.by_name.get(name).copied())
            .unwrap_or_default();
        match fault.what {
            Fault::Crash { .. } => {
                self.nodes[node].unpowered += 1;
                let keys: Vec<_> = self.nodes[node].workers.keys().cloned().collect();
                for key in keys {
                    self.worker_ends(node, &key, End::PowerLost);
                }
                self.agent_ends(node);
            }
            Fault::AgentRestart { .. } => {
                self.nodes[node].agent_down += 1;
                self.agent_ends(node);
            }
            Fault::WorkerCrash { .. } => {
                if let Some(key) = self.nodes[node].workers.keys().next().cloned() {
                    self.worker_ends(node, &key, End::Crashed);
                }
            }
            Fault::Cut { .. } => {
                self.nodes[node].cut += 1;
                self.connection_changed(node);
            }
            Fault::Isolate { .. } => {
                self.nodes[node].isolated += 1;
                self.connection_changed(node);
            }
            Fault::SlowDisk { factor, .. } => self.nodes[node].slow_disk = factor,
            Fault::Thermal { factor, .. } => {
                self.nodes[node].thermal = factor;
                self.wake_agent(node);
            }
            Fault::OnBattery { .. } => {
                self.nodes[node].on_battery += 1;
                self.wake_agent(node);
            }
            Fault::MemoryTaken { share, .. } => {
                self.nodes[node].memory_taken = share;
                self.wake_agent(node);
            }
            Fault::ClockSkew { seconds, .. } => {
                self.nodes[node].clock_skew = seconds;
                self.wake_agent(node);
            }
            Fault::StaleController {} => self.controller_goes_stale(),
            Fault::StaleGateway {} => self.front.stale += 1,
            Fault::Relist {} => {
                let life = self.control.life;
                self.after(
                    std::time::Duration::ZERO,
                    Event::List {
                        reader: Reader::Controller,
                        life,
                    },
                );
            }
            Fault::ControllerRestart {} => {
                self.control.down += 1;
                self.start_controller();
            }
            Fault::LostWrites { share } => {
                self.lost_share = share;
                self.control.hinder(self.now);
            }
            Fault::SlowNetwork { factor } => {
                self.slow_network = factor;
                self.control.hinder(self.now);
            }
            Fault::DeleteNode { node } => {
                if let Some(found) = self.store.nodes.get(&(None, node)).cloned() {
                    let now = self.clock();
                    drop(self.store.delete::<FleetNode>(&Version::of(found.as_ref()), now));
                }
            }
        }
        let lasts = self.faults[index].lasts;
        self.after(lasts, Event::FaultEnds { index });
    }

    pub(super) fn fault_ends(&mut self, index: usize) {
        let fault = self.faults[index].clone();
        self.ledger
            .tell(self.now, || format!("fault ends: {:?}", fault.what));
        let node = fault
            .node()
            .and_then(|name| self.by_name.get(name).copied())
            .unwrap_or_default();
        match fault.what {
            Fault::Crash { .. } => {
                self.nodes[node].unpowered -= 1;
                self.agent_begins(node);
            }
            Fault::AgentRestart { .. } => {
                self.nodes[node].agent_down -= 1;
                self.agent_begins(node);
            }
            Fault::Cut { .. } => {
                self.nodes[node].cut -= 1;
                self.connection_changed(node);
            }
            Fault::Isolate { .. } => {
                self.nodes[node].isolated -= 1;
                self.connection_changed(node);
            }
            Fault::SlowDisk { .. } => self.nodes[node].slow_disk = 1.0,
            Fault::Thermal { .. } => {
                self.nodes[node].thermal = 1.0;
                self.wake_agent(node);
            }
            Fault::OnBattery { .. } => {
                self.nodes[node].on_battery -= 1;
                self.wake_agent(node);
            }
            Fault::MemoryTaken { .. } => {
                self.nodes[node].memory_taken = 0.0;
                self.wake_agent(node);
            }
            Fault::ClockSkew { .. } => self.nodes[node].clock_skew = 0,
            Fault::StaleController {} => self.controller_hears_again(),
            Fault::StaleGateway {} => {
                self.front.stale -= 1;
                self.deliver_all(Reader::Gateway);
            }
            Fault::ControllerRestart {} => {
                self.control.down -= 1;
                self.start_controller();
            }
            Fault::LostWrites { .. } => {
                self.lost_share = 0.0;
                self.control.hinder(self.now);
            }
            Fault::SlowNetwork { .. } => {
                self.slow_network = 1.0;
                self.control.hinder(self.now);
            }
            Fault::WorkerCrash { .. } | Fault::Relist {} | Fault::DeleteNode { .. } => {}
        }
    }

    /// Its process is gone; what it was doing is never answered.
    fn agent_ends(&mut self, node: usize) {
        self.nodes[node].life += 1;
        self.connection_changed(node);
    }

    fn agent_begins(&mut self, node: usize) {
        if self.nodes[node].agent_runs() {
            self.start_agent(node);
        }
    }
}
