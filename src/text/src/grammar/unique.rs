//! Lists whose items must differ, such as `{"items": {"type": "string"}, "uniqueItems": true}`. A grammar
//! cannot compare items, so that a tracker reads the answer beside the automaton.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::NodeId;

/// Byte nodes of a grammar at which lists of unique items and their items begin. Items are strings, or
/// integers without leading zeros. Every text of an unfinished item can continue.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct UniqueNodes {
    pub(super) lists: BTreeSet<NodeId>,
    pub(super) items: BTreeSet<NodeId>,
}

impl UniqueNodes {
    pub(super) fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Removes the nodes from this one on.
    pub(super) fn truncate(&mut self, first: NodeId) {
        self.lists.retain(|node| *node < first);
        self.items.retain(|node| *node < first);
    }
}

/// Elements that may begin with a byte.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Opening {
    pub(super) list: bool,
    pub(super) item: bool,
}

/// Unfinished item.
#[derive(Debug, Clone)]
struct Item {
    /// Text so far, with the opening quotation mark of a string.
    text: Vec<u8>,
    is_escaped: bool,
}

/// Items of the current list of unique items.
#[derive(Debug, Clone, Default)]
pub(super) struct UniqueItems {
    seen: Arc<HashSet<Vec<u8>>>,
    /// Items after the last [`keep`](Self::keep).
    new: Vec<Vec<u8>>,
    current: Option<Item>,
}

impl UniqueItems {
    /// Returns true if the text is inside a string, which ends with a quotation mark.
    pub(super) fn is_in_string(&self) -> bool {
        self.current.as_ref().is_some_and(Item::is_string)
    }

    /// Returns true if the next item cannot repeat another one.
    pub(super) fn is_at_begin(&self) -> bool {
        self.current.is_none() && self.seen.is_empty() && self.new.is_empty()
    }

    /// Reads one byte of the answer. Returns false if an item ends that repeats another one.
    pub(super) fn read(&mut self, byte: u8, opening: Opening) -> bool {
        if let Some(item) = &mut self.current {
            if item.is_string() {
                item.text.push(byte);
                let ends = byte == b'"' && !item.is_escaped;
                item.is_escaped = byte == b'\\' && !item.is_escaped;
                return !ends || self.finish();
            }
            if byte.is_ascii_digit() {
                item.text.push(byte);
                return true;
            }
            if !self.finish() {
                return false;
            }
        }
        if opening.list {
            self.seen = Arc::default();
            self.new.clear();
        }
        if opening.item {
            self.current = Some(Item {
                text: vec![byte],
                is_escaped: false,
            });
        }
        true
    }

    /// Adds the new items to the set, so that copies are cheap.
    pub(super) fn keep(&mut self) {
        if !self.new.is_empty() {
            Arc::make_mut(&mut self.seen).extend(self.new.drain(..));
        }
    }

    /// Ends the current item. Returns false if it repeats another one.
    fn finish(&mut self) -> bool {
        let Some(item) = self.current.take() else {
            return true;
        };
        let value = item.value();
        let is_new = !self.seen.contains(&value) && !self.new.contains(&value);
        if is_new {
            self.new.push(value);
        }
        is_new
    }
}

impl Item {
    fn is_string(&self) -> bool {
        self.text.first() == Some(&b'"')
    }

    /// Returns a text that equal items share: strings may have escapes.
    fn value(self) -> Vec<u8> {
        let unescaped = serde_json::from_slice::<String>(&self.text).ok();
        match unescaped.filter(|_| self.is_string()) {
            Some(string) => [b"\"", string.as_bytes()].concat(),
            None => self.text,
        }
    }
}
