//! The API server's process dies and comes back with what is on its disk. Everybody lists anew then.

use std::time::Duration;

use super::event::{Answer, Event, Reader, Write};
use super::planted::Bug;
use super::run::Run;
use super::store::Object;
use rooflet_client::RENEW_DEADLINE;
use rooflet_controller::intent::Intent;

/// Who was cut off lists again within this time after the server is back.
const RELIST: Duration = Duration::from_secs(1);
/// By a planted bug the last so many writes are not on disk when they are answered.
const UNSYNCED: usize = 8;

impl Run<'_> {
    pub(super) fn store_crashes(&mut self) {
        self.outages += 1;
        if self.outages > 1 {
            return;
        }
        self.crashed = Some(self.now);
        let undone = if self.planted.has(Bug::AnsweredBeforeSynced) {
            self.store.lose(UNSYNCED)
        } else {
            self.store.crash(&mut self.disk)
        };
        let count = undone.len();
        self.ledger.tell(self.now, || {
            format!("the API server crashes; the last {count} writes, which nobody was told of, are lost")
        });
        for change in &undone {
            self.check_lost(change);
            self.ledger.note(self.now, change);
        }
        let now = self.now;
        self.control.view.end(now);
        self.front.view.end(now);
        for node in 0..self.nodes.len() {
            self.nodes[node].view.end(now);
            self.nodes[node].cut += 1;
            self.connection_changed(node);
        }
        self.control.hinder(now);
    }

    pub(super) fn store_comes_back(&mut self) {
        self.outages -= 1;
        if self.outages > 0 {
            return;
        }
        self.control.hinder(self.now);
        let away = self
            .crashed
            .map_or(Duration::ZERO, |at| self.now.saturating_sub(at));
        if away >= RENEW_DEADLINE {
            self.start_controller();
        } else {
            let life = self.control.life;
            self.relist(Reader::Controller, life);
        }
        self.relist(Reader::Gateway, 0);
        for node in 0..self.nodes.len() {
            self.nodes[node].cut -= 1;
            self.connection_changed(node);
            let life = self.nodes[node].life;
            self.relist(Reader::Agent(node), life);
        }
    }

    pub(super) fn relist(&mut self, reader: Reader, life: u32) {
        let wait = self.disk.between(Duration::ZERO, RELIST);
        self.after(wait, Event::List { reader, life });
    }

    /// Nobody is answered.
    pub(super) fn is_out(&self) -> bool {
        self.outages > 0
    }

    /// Somebody was told what a revision wrote.
    pub(super) fn told(&mut self, revision: u64) {
        self.rules.told = self.rules.told.max(revision);
        if !self.planted.has(Bug::AnsweredBeforeSynced) {
            self.store.told(revision);
        }
    }

    /// What its sender hears of an answer: nothing, where the server has died meanwhile.
    pub(super) fn heard(&mut self, arrived: Duration, write: &Write, answer: Answer) -> Answer {
        let Answer::Done(object) = &answer else {
            return answer;
        };
        if self.crashed.is_none_or(|at| at < arrived) {
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
