//! Lists whose items must differ, such as `{"items": {"type": "string"}, "uniqueItems": true}`. A grammar
//! cannot compare items, so that a tracker reads the answer beside the automaton. The grammar of such items
//! permits one spelling of each value: items are equal if and only if their texts are equal.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use super::NodeId;

/// Byte nodes of a grammar at which lists of unique items begin.
pub(super) type UniqueLists = BTreeSet<NodeId>;

/// Unfinished item.
#[derive(Debug, Clone, Default)]
pub(super) struct Item {
    /// Text so far.
    pub(super) text: Vec<u8>,
    /// Number of open brackets.
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
}

/// Relation of a byte to an unfinished item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// The byte belongs to the item, which may continue.
    Inside,
    /// The byte ends the item.
    Last,
    /// The item ended before the byte.
    Outside,
}

impl Item {
    pub(super) fn read(&mut self, byte: u8) -> Reading {
        if self.is_in_string {
            self.text.push(byte);
            let ends = byte == b'"' && !self.is_escaped;
            self.is_escaped = byte == b'\\' && !self.is_escaped;
            self.is_in_string = !ends;
            return match ends && self.depth == 0 {
                true => Reading::Last,
                false => Reading::Inside,
            };
        }
        match byte {
            b',' | b']' | b' ' | b'\n' if self.depth == 0 => return Reading::Outside,
            b'"' => self.is_in_string = true,
            b'[' | b'{' => self.depth += 1,
            b']' | b'}' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.text.push(byte);
        match self.depth == 0 && matches!(byte, b']' | b'}') {
            true => Reading::Last,
            false => Reading::Inside,
        }
    }

    /// Returns true if the item may end before the next byte, such as a number.
    pub(super) fn has_open_end(&self) -> bool {
        self.depth == 0 && !self.is_in_string && !self.text.is_empty()
    }
}

/// Items of the current list of unique items.
#[derive(Debug, Clone, Default)]
pub(super) struct UniqueItems {
    seen: Arc<BTreeSet<Vec<u8>>>,
    /// Items after the last [`keep`](Self::keep).
    new: Vec<Vec<u8>>,
    is_in_list: bool,
    /// True after a comma.
    expects_item: bool,
    current: Option<Item>,
}

impl UniqueItems {
    pub(super) fn current(&self) -> Option<&Item> {
        self.current.as_ref()
    }

    /// Returns true if only an item can follow, after white space.
    pub(super) fn expects_item(&self) -> bool {
        self.expects_item
    }

    /// Returns true if the text is inside a string, which ends with a quotation mark.
    pub(super) fn is_in_string(&self) -> bool {
        self.current.as_ref().is_some_and(|item| item.is_in_string)
    }

    /// Returns true if the list has complete items.
    pub(super) fn has_items(&self) -> bool {
        !self.seen.is_empty() || !self.new.is_empty()
    }

    pub(super) fn contains(&self, text: &[u8]) -> bool {
        self.seen.contains(text) || self.new.iter().any(|item| item == text)
    }

    /// Returns true if an item begins with this text.
    pub(super) fn has_beginning(&self, text: &[u8]) -> bool {
        self.beginning_with(text).next().is_some()
    }

    /// Returns the bytes that follow the text of the current item in other items.
    pub(super) fn next_bytes(&self) -> BTreeSet<u8> {
        let text = self.current.as_ref().map_or(&[][..], |item| &item.text);
        let same = self.beginning_with(text);
        same.filter_map(|item| item.get(text.len()).copied()).collect()
    }

    fn beginning_with<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = &'a Vec<u8>> {
        let seen = self
            .seen
            .range::<[u8], _>((Bound::Included(text), Bound::Unbounded));
        let seen = seen.take_while(move |item| item.starts_with(text));
        seen.chain(self.new.iter().filter(move |item| item.starts_with(text)))
    }

    /// Reads one byte of the answer; `opens_list` is true if a list of unique items may begin with this byte.
    /// Returns false if an item ends that repeats another one, or if a list begins inside another one.
    pub(super) fn read(&mut self, byte: u8, opens_list: bool) -> bool {
        // A list in an item of another one, or an ambiguity of the grammar: only one list is tracked.
        if opens_list && self.is_in_list {
            return false;
        }
        if let Some(item) = &mut self.current {
            match item.read(byte) {
                Reading::Inside => return true,
                Reading::Last => return self.finish(),
                Reading::Outside if !self.finish() => return false,
                Reading::Outside => {}
            }
        }
        match byte {
            _ if opens_list => {
                self.seen = Arc::default();
                self.new.clear();
                self.is_in_list = true;
            }
            _ if !self.is_in_list => {}
            b' ' | b'\n' => {}
            b',' => self.expects_item = true,
            b']' => self.is_in_list = false,
            _ => {
                self.expects_item = false;
                let mut item = Item::default();
                item.read(byte);
                self.current = Some(item);
            }
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
        let is_new = !self.contains(&item.text);
        if is_new {
            self.new.push(item.text);
        }
        is_new
    }
}
