//! Parser of values. Keeps the parsed form of recently used values only: it needs several times the
//! memory of the text.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde_json::Value;

use super::{LocateExcerpt, ParseValue};
use rooflet_base::mutex::lock;

/// Text of the values that stay parsed. The newest value stays parsed at any size, because all
/// watchers read it. Their parsed form needs about eight times as much memory.
const RECENT_TEXT_BYTES_MAX: usize = 1 << 20;

/// Parser of the values of one store.
pub(super) struct Parser {
    parse: ParseValue,
    locate_excerpt: LocateExcerpt,
    recent: Mutex<Recent>,
}

/// Recently parsed values, oldest first.
#[derive(Default)]
struct Recent {
    values: HashMap<Place, Arc<Value>>,
    order: VecDeque<Bytes>,
    bytes: usize,
}

/// Address and length of a text. They identify a text that is still allocated.
type Place = (usize, usize);

fn place(text: &Bytes) -> Place {
    (text.as_ptr() as usize, text.len())
}

impl Parser {
    pub(super) fn new(parse: ParseValue, locate_excerpt: LocateExcerpt) -> Arc<Self> {
        Arc::new(Self {
            parse,
            locate_excerpt,
            recent: Mutex::default(),
        })
    }

    /// Returns the place of the excerpt, which is empty if the text has none.
    pub(super) fn excerpt(&self, text: &Bytes) -> Range<u32> {
        let located = (self.locate_excerpt)(text).unwrap_or_default();
        let place = u32::try_from(located.start).and_then(|start| Ok(start..u32::try_from(located.end)?));
        place.unwrap_or_default()
    }

    /// Returns the parsed value. Fails if the text is not JSON.
    pub(super) fn parse(&self, text: &Bytes) -> serde_json::Result<Arc<Value>> {
        if let Some(value) = lock(&self.recent).values.get(&place(text)) {
            return Ok(Arc::clone(value));
        }
        let value = Arc::new((self.parse)(text)?);
        // Dropping parsed values is slow, so it happens after the lock is released.
        let evicted = lock(&self.recent).insert(text, &value);
        drop(evicted);
        Ok(value)
    }

    /// Frees the parsed values. They are parsed again when they are used again.
    pub(super) fn forget(&self) {
        let evicted = std::mem::take(&mut *lock(&self.recent));
        drop(evicted);
    }
}

impl Recent {
    /// Adds a value and returns those that are evicted for it.
    fn insert(&mut self, text: &Bytes, value: &Arc<Value>) -> Vec<Arc<Value>> {
        // Another thread may have parsed the same text meanwhile.
        if self.values.insert(place(text), Arc::clone(value)).is_none() {
            self.order.push_back(text.clone());
            self.bytes += text.len();
        }
        let mut evicted = Vec::new();
        while self.bytes > RECENT_TEXT_BYTES_MAX
            && self.order.len() > 1
            && let Some(oldest) = self.order.pop_front()
        {
            self.bytes -= oldest.len();
            evicted.extend(self.values.remove(&place(&oldest)));
        }
        evicted
    }
}

impl fmt::Debug for Parser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be Secrets.
        f.debug_struct("Parser").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parser() -> Arc<Parser> {
        Parser::new(|bytes| serde_json::from_slice(bytes), |_| None)
    }

    fn text_of(bytes: usize) -> Bytes {
        Bytes::from(format!("{:?}", "x".repeat(bytes - 2)))
    }

    #[test]
    fn recently_used_values_are_parsed_once() {
        let parser = parser();
        let text = Bytes::from_static(b"{\"a\":1}");
        let first = parser.parse(&text).expect("JSON");
        assert!(Arc::ptr_eq(&first, &parser.parse(&text).expect("JSON")));
        assert!(parser.parse(&Bytes::from_static(b"{")).is_err());
        // Equal text at another place is another value.
        let copy = Bytes::copy_from_slice(&text);
        assert!(!Arc::ptr_eq(&first, &parser.parse(&copy).expect("JSON")));
    }

    #[test]
    fn forgotten_values_are_freed_and_parsed_again() {
        let parser = parser();
        let text = text_of(8);
        let first = parser.parse(&text).expect("JSON");
        parser.forget();
        assert_eq!(Arc::strong_count(&first), 1);
        assert_eq!(*parser.parse(&text).expect("JSON"), *first);
        assert_eq!(lock(&parser.recent).bytes, text.len());
    }

    #[test]
    fn parsed_values_are_bounded_by_their_text() {
        let parser = parser();
        let parsed: Vec<_> = (0..16).map(|_| text_of(RECENT_TEXT_BYTES_MAX / 4)).collect();
        for text in &parsed {
            parser.parse(text).expect("JSON");
        }
        let (values, bytes) = {
            let recent = lock(&parser.recent);
            (recent.values.len(), recent.bytes)
        };
        assert_eq!((values, bytes), (4, RECENT_TEXT_BYTES_MAX));
        let large = text_of(2 * RECENT_TEXT_BYTES_MAX);
        let first = parser.parse(&large).expect("JSON");
        assert!(Arc::ptr_eq(&first, &parser.parse(&large).expect("JSON")));
        assert_eq!(lock(&parser.recent).order.len(), 1);
    }
}
