//! A bound on what a model says to itself before it answers. Where its tokens are used up, the next
//! one is the mark that ends the block, whatever the model would have said.

use std::sync::Arc;

use rooflet_text::grammar::mask::Mask;

/// See the module's text.
#[derive(Debug, Clone)]
pub(crate) struct ThinkingBudget {
    left: usize,
    open: u32,
    close: u32,
    only_close: Arc<Mask>,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// No block has begun.
    Before,
    Within,
    Behind,
}

impl ThinkingBudget {
    /// At most `tokens` between the marks, of a model with so many tokens; `begun`: the prompt has
    /// begun the block.
    pub(crate) fn new(tokens: usize, (open, close): (u32, u32), vocabulary: usize, begun: bool) -> Self {
        Self {
            left: tokens,
            open,
            close,
            only_close: Arc::new(Mask::only(vocabulary, close)),
            place: if begun { Place::Within } else { Place::Before },
        }
    }

    /// A token was chosen.
    pub(crate) fn take(&mut self, token: u32) {
        match self.place {
            Place::Before if token == self.open => self.place = Place::Within,
            Place::Within if token == self.close => self.place = Place::Behind,
            Place::Within => self.left = self.left.saturating_sub(1),
            Place::Before | Place::Behind => {}
        }
    }

    /// What the next token must be, where it must be something.
    pub(crate) fn mask(&self) -> Option<&Arc<Mask>> {
        (self.place == Place::Within && self.left == 0).then_some(&self.only_close)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: (u32, u32) = (7, 8);

    /// How many of these tokens are taken before the end of thinking is forced.
    fn free(budget: usize, begun: bool, tokens: &[u32]) -> usize {
        let mut thinking = ThinkingBudget::new(budget, MARKS, 10, begun);
        let forced = |token: &u32| {
            let forced = thinking.mask().is_some();
            thinking.take(*token);
            forced
        };
        tokens.iter().position(forced).unwrap_or(tokens.len())
    }

    #[test]
    fn thinking_ends_when_its_tokens_are_used_up() {
        assert_eq!(free(2, true, &[1, 1, 1, 1]), 2);
        assert_eq!(free(2, false, &[7, 1, 1, 1]), 3, "the mark is none of them");
        assert_eq!(free(2, false, &[1, 1, 1, 1]), 4, "an answer is no thinking");
        assert_eq!(free(2, true, &[1, 8, 1, 1, 7, 1]), 6, "nor what comes behind it");
        assert_eq!(free(0, true, &[1]), 0);
        let used_up = ThinkingBudget::new(0, MARKS, 10, true);
        let mask = used_up.mask().unwrap();
        assert!((0..10).all(|token| mask.allows(token) == (token == MARKS.1)));
    }
}
