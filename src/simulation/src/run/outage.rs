//! The API server's process dies and comes back with what is on its disk. Everybody lists anew
//! then.

use std::time::Duration;

use crate::run::Run;
use crate::scenario::planted::Bug;
use crate::world::event::{Answer, Event, Reader, Write};
use crate::world::store::Object;
use rooflet_client::RENEW_DEADLINE;
use rooflet_controller::intent::Intent;

/// Who was cut off lists again within this time after the server is back.
const RELIST: Duration = Duration::from_secs(1);

/// By a planted bug the last so many writes are not on disk when they are answered.
const UNSYNCED: usize = 8;

impl Run<'_> {
    pub(crate) fn store_crashes(&mut self) {
        self.network.outages += 1;
        if self.network.outages > 1 {
            return;
        }
        self.network.crashed = Some(self.world.now);
        let undone = if self.world.planted.has(Bug::AnsweredBeforeSynced) {
            self.world.store.lose(UNSYNCED)
        } else {
            self.world.store.crash(&mut self.network.disk)
        };
        let count = undone.len();
        self.rules.ledger.tell(self.world.now, || {
            format!("the API server crashes; the last {count} writes, which nobody was told of, are lost")
        });
        for change in &undone {
            self.check_lost(change);
            self.rules.ledger.note(self.world.now, change);
        }
        let now = self.world.now;
        self.world.control.view.end(now);
        self.world.front.view.end(now);
        for node in 0..self.world.nodes.len() {
            self.world.nodes[node].view.end(now);
            self.world.nodes[node].cut += 1;
            self.connection_changed(node);
        }
        self.world.control.hinder(now);
    }

    pub(crate) fn store_comes_back(&mut self) {
        self.network.outages -= 1;
        if self.network.outages > 0 {
            return;
        }
        self.world.control.hinder(self.world.now);
        let away = self
            .network
            .crashed
            .map_or(Duration::ZERO, |at| self.world.now.saturating_sub(at));
        if away >= RENEW_DEADLINE {
            self.start_controller();
        } else {
            let life = self.world.control.life;
            self.relist(Reader::Controller, life);
        }
        self.relist(Reader::Gateway, 0);
        for node in 0..self.world.nodes.len() {
            self.world.nodes[node].cut -= 1;
            self.connection_changed(node);
            let life = self.world.nodes[node].life;
            self.relist(Reader::Agent(node), life);
        }
    }

    pub(crate) fn relist(&mut self, reader: Reader, life: u32) {
        let wait = self.network.disk.between(Duration::ZERO, RELIST);
        self.world.after(wait, Event::List { reader, life });
    }

    /// Somebody was told what a revision wrote.
    pub(crate) fn told(&mut self, revision: u64) {
        self.rules.told = self.rules.told.max(revision);
        if !self.world.planted.has(Bug::AnsweredBeforeSynced) {
            self.world.store.told(revision);
        }
    }

    /// What its sender hears of an answer: nothing, where the server has died meanwhile.
    pub(crate) fn heard(&mut self, arrived: Duration, write: &Write, answer: Answer) -> Answer {
        let Answer::Done(object) = &answer else {
            return answer;
        };
        if self.network.crashed.is_none_or(|at| at < arrived) {
            self.told(object.version());
            return answer;
        }
        match write {
            Write::Intent(Intent::CreateReplica(_), _) => self.rules.creations_lost += 1,
            Write::Intent(Intent::DeleteReplica { .. }, _) => {
                if let Object::Replica(replica) = object {
                    self.note_missed(replica);
                }
            }
            Write::Intent(..) | Write::Register(_) | Write::LetGo { .. } => {}
        }
        Answer::Lost
    }
}
