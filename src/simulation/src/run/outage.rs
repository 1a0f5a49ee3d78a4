//! Crash and restart of the API server. After the restart, all clients list again.

use std::time::Duration;

use crate::run::Run;
use crate::scenario::planted::Bug;
use crate::world::event::{Event, Reader, Write, WriteResponse};
use crate::world::store::Object;
use rooflet_client::RENEW_DEADLINE;
use rooflet_controller::intent::Intent;

/// Longest delay between the restart and a client's list.
const RELIST_DELAY: Duration = Duration::from_secs(1);

/// Number of acknowledged writes that are not on disk, with a planted bug.
const UNSYNCED_WRITES: usize = 8;

impl Run<'_> {
    pub(crate) fn crash_store(&mut self) {
        self.network.outages += 1;
        if self.network.outages > 1 {
            return;
        }
        self.network.crashed = Some(self.world.now);
        let reverted = if self.world.planted.has(Bug::AcknowledgedBeforeSync) {
            self.world.store.discard_unsynced(UNSYNCED_WRITES)
        } else {
            self.world.store.crash(&mut self.network.disk)
        };
        let count = reverted.len();
        self.rules.ledger.log(self.world.now, || {
            format!("the API server crashes and loses the last {count} writes, which no client has received")
        });
        for change in &reverted {
            self.rules.check_lost(&self.world, change);
            self.rules.ledger.count_change(self.world.now, change);
        }
        let now = self.world.now;
        self.world.control.view.end(now);
        self.world.gateway.view.end(now);
        for node in 0..self.world.nodes.len() {
            self.world.nodes[node].view.end(now);
            self.world.nodes[node].cut += 1;
            self.connection_changed(node);
        }
        self.world.control.mark_impaired(now);
    }

    pub(crate) fn restart_store(&mut self) {
        self.network.outages -= 1;
        if self.network.outages > 0 {
            return;
        }
        self.world.control.mark_impaired(self.world.now);
        let away = self
            .network
            .crashed
            .map_or(Duration::ZERO, |at| self.world.now.saturating_sub(at));
        if away >= RENEW_DEADLINE {
            self.start_controller();
        } else {
            let incarnation = self.world.control.incarnation;
            self.relist(Reader::Controller, incarnation);
        }
        self.relist(Reader::Gateway, 0);
        for node in 0..self.world.nodes.len() {
            self.world.nodes[node].cut -= 1;
            self.connection_changed(node);
            let incarnation = self.world.nodes[node].incarnation;
            self.relist(Reader::Agent(node), incarnation);
        }
    }

    pub(crate) fn relist(&mut self, reader: Reader, incarnation: u32) {
        let wait = self.network.disk.between(Duration::ZERO, RELIST_DELAY);
        self.world.after(wait, Event::List { reader, incarnation });
    }

    /// Records that a client has received a revision.
    pub(crate) fn mark_observed(&mut self, revision: u64) {
        self.rules.observe_revision(revision);
        if !self.world.planted.has(Bug::AcknowledgedBeforeSync) {
            self.world.store.mark_durable(revision);
        }
    }

    /// Returns the response that the sender receives. It is lost if the server has crashed since
    /// the write arrived.
    pub(crate) fn received_response(
        &mut self,
        arrived: Duration,
        write: &Write,
        response: WriteResponse,
    ) -> WriteResponse {
        let WriteResponse::Done(object) = &response else {
            return response;
        };
        if self.network.crashed.is_none_or(|at| at < arrived) {
            self.mark_observed(object.version());
            return response;
        }
        match write {
            Write::Intent(Intent::CreateReplica(_), _) => self.rules.unacknowledged_creations += 1,
            Write::Intent(Intent::DeleteReplica { .. }, _) => {
                if let Object::Replica(replica) = object {
                    self.rules.note_lost_replica(self.world.now, replica);
                }
            }
            Write::Intent(..) | Write::Register(_) | Write::RemoveFinalizer { .. } => {}
        }
        WriteResponse::Lost
    }
}
