//! Rows: whole caches of requests that are over. A request whose prompt begins with the same tokens
//! goes on in one, in place. Pure: what a row holds is the caller's.

use std::collections::VecDeque;

use super::key::BlockKey;

/// Every request looks at each.
const MAX_ROWS: usize = 64;

/// See the module's text. `C` is what a row holds.
#[derive(Debug)]
pub(super) struct IdleRows<C> {
    /// Those that ended first go first.
    rows: VecDeque<IdleRow<C>>,
    bytes: u64,
}

/// What is left of one request.
#[derive(Debug)]
pub(super) struct IdleRow<C> {
    /// Of texts that may be shared with it.
    pub(super) root: BlockKey,
    /// Those whose keys and values it holds.
    pub(super) tokens: Vec<u32>,
    pub(super) cache: C,
    /// Of all its buffers, used or not.
    pub(super) bytes: u64,
}

impl<C> Default for IdleRows<C> {
    fn default() -> Self {
        Self {
            rows: VecDeque::new(),
            bytes: 0,
        }
    }
}

impl<C> IdleRows<C> {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn put(&mut self, row: IdleRow<C>) {
        self.bytes += row.bytes;
        self.rows.push_back(row);
        while self.rows.len() > MAX_ROWS {
            self.drop_oldest();
        }
    }

    /// Takes out the row that holds most of the beginning of `text`, and how many of its tokens
    /// that are; of equal ones the smallest. One that begins with `least` tokens of the text or
    /// more, and of which that is half or more: the rest is lost.
    pub(super) fn take(&mut self, root: BlockKey, text: &[u32], least: usize) -> Option<(C, usize)> {
        let same = |row: &IdleRow<C>| {
            row.tokens
                .iter()
                .zip(text)
                .take_while(|(own, other)| own == other)
                .count()
        };
        let candidates = self.rows.iter().enumerate();
        let candidates = candidates.filter(|(_, row)| row.root == root);
        let (index, tokens, _) = candidates
            .map(|(index, row)| (index, same(row), row))
            .filter(|(_, tokens, row)| *tokens >= least && 2 * tokens >= row.tokens.len())
            .max_by_key(|(_, tokens, row)| (*tokens, std::cmp::Reverse(row.bytes)))?;
        let row = self.rows.remove(index)?;
        self.bytes -= row.bytes;
        Some((row.cache, tokens))
    }

    /// Lets go of rows, the oldest first, until they have no more than `bytes`.
    pub(super) fn shrink(&mut self, bytes: u64) {
        while self.bytes > bytes {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(row) = self.rows.pop_front() {
            self.bytes -= row.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(salt: &str) -> BlockKey {
        BlockKey::root("model", salt)
    }

    /// Rows of one byte a token, named in order.
    fn rows(texts: &[&[u32]]) -> IdleRows<usize> {
        let mut rows = IdleRows::default();
        for (name, text) in texts.iter().enumerate() {
            rows.put(IdleRow {
                root: root(""),
                tokens: text.to_vec(),
                cache: name,
                bytes: text.len() as u64,
            });
        }
        rows
    }

    #[test]
    fn the_row_that_holds_most_of_a_text_is_taken_once() {
        let texts: [&[u32]; 4] = [&[1, 2, 3], &[1, 2, 3, 4, 5], &[1, 2, 3, 4], &[7, 8]];
        let mut rows = rows(&texts);
        let text = [1, 2, 3, 4, 6];
        assert_eq!(rows.take(root("other"), &text, 1), None);
        assert_eq!(rows.take(root(""), &text, 5), None);
        assert_eq!(rows.bytes(), 14);
        // Of two that hold as much, the smaller.
        let mut taken = || rows.take(root(""), &text, 1);
        assert_eq!(taken(), Some((2, 4)));
        assert_eq!(taken(), Some((1, 4)));
        assert_eq!(taken(), Some((0, 3)));
        assert_eq!(taken(), None);
        assert_eq!(rows.bytes(), 2);
    }

    #[test]
    fn a_row_is_left_to_others_that_need_more_of_it() {
        let long: Vec<u32> = (0..9).collect();
        let mut rows = rows(&[&long]);
        assert_eq!(rows.take(root(""), &long[..4], 1), None, "less than half");
        assert_eq!(rows.take(root(""), &long[..5], 1), Some((0, 5)));
    }

    #[test]
    fn the_oldest_go_first() {
        let mut rows = rows(&[&[1; 4], &[2; 3], &[3; 2]]);
        rows.shrink(9);
        assert_eq!(rows.bytes(), 9);
        rows.shrink(4);
        assert_eq!(rows.take(root(""), &[2; 3], 1), None);
        assert_eq!(rows.take(root(""), &[3; 2], 1), Some((2, 2)));
        let many: Vec<[u32; 1]> = (0..100).map(|name| [name]).collect();
        let many: Vec<&[u32]> = many.iter().map(|text| &text[..]).collect();
        assert_eq!(self::rows(&many).bytes(), MAX_ROWS as u64);
    }
}
