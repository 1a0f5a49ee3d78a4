//! Idle rows: complete KV caches of finished requests. A request whose prompt begins with the same
//! tokens continues in such a cache, in place. The module is pure: the caches belong to the caller.

use std::collections::VecDeque;

use super::key::BlockKey;

/// Maximum number of rows. Every request compares its prompt with each row.
const MAX_ROWS: usize = 64;

/// Idle rows in the order in which their requests ended. `C` is the type of a cache.
#[derive(Debug)]
pub(super) struct IdleRows<C> {
    /// The front is evicted first.
    rows: VecDeque<IdleRow<C>>,
    bytes: u64,
}

/// Cache of one finished request.
#[derive(Debug)]
pub(super) struct IdleRow<C> {
    /// Root of the texts that may use the row.
    pub(super) root: BlockKey,
    /// Tokens whose keys and values the cache holds.
    pub(super) tokens: Vec<u32>,
    pub(super) cache: C,
    /// Size of all its buffers, used or not.
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

    /// Removes and returns the row that shares the most leading tokens with `text`, and their
    /// number. Among equal rows, the smallest one. The shared tokens must be at least `least`, and
    /// at least half of the row, because the rest of the row is lost.
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

    /// Evicts rows, the oldest first, until they have at most `bytes`.
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

    /// Rows with one byte per token, numbered in order.
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
    fn takes_the_row_with_the_longest_common_prefix_once() {
        let texts: [&[u32]; 4] = [&[1, 2, 3], &[1, 2, 3, 4, 5], &[1, 2, 3, 4], &[7, 8]];
        let mut rows = rows(&texts);
        let text = [1, 2, 3, 4, 6];
        assert_eq!(rows.take(root("other"), &text, 1), None);
        assert_eq!(rows.take(root(""), &text, 5), None);
        assert_eq!(rows.bytes(), 14);
        // Of two rows with equal prefixes, the smaller one is taken.
        let mut taken = || rows.take(root(""), &text, 1);
        assert_eq!(taken(), Some((2, 4)));
        assert_eq!(taken(), Some((1, 4)));
        assert_eq!(taken(), Some((0, 3)));
        assert_eq!(taken(), None);
        assert_eq!(rows.bytes(), 2);
    }

    #[test]
    fn does_not_take_a_row_for_less_than_half_of_its_tokens() {
        let long: Vec<u32> = (0..9).collect();
        let mut rows = rows(&[&long]);
        assert_eq!(rows.take(root(""), &long[..4], 1), None, "less than half");
        assert_eq!(rows.take(root(""), &long[..5], 1), Some((0, 5)));
    }

    #[test]
    fn evicts_the_oldest_rows_first() {
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
