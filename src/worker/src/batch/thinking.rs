//! Thinking budget: limit of the reasoning tokens before an answer. When the budget is used up, the
//! logits mask permits only the token that ends the reasoning.

use std::sync::Arc;

use rooflet_text::grammar::mask::Mask;

/// Remaining reasoning tokens of one answer.
#[derive(Debug, Clone)]
pub(crate) struct ThinkingBudget {
    left: usize,
    open: u32,
    close: u32,
    close_mask: Arc<Mask>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The reasoning has not begun.
    Before,
    Inside,
    After,
}

impl ThinkingBudget {
    /// Creates a budget of `tokens` tokens between the tokens `open` and `close`. `begun`: the
    /// prompt already contains `open`.
    pub(crate) fn new(tokens: usize, (open, close): (u32, u32), vocabulary: usize, begun: bool) -> Self {
        Self {
            left: tokens,
            open,
            close,
            close_mask: Arc::new(Mask::only(vocabulary, close)),
            state: if begun { State::Inside } else { State::Before },
        }
    }

    /// Records a sampled token.
    pub(crate) fn push(&mut self, token: u32) {
        match self.state {
            State::Before if token == self.open => self.state = State::Inside,
            State::Inside if token == self.close => self.state = State::After,
            State::Inside => self.left = self.left.saturating_sub(1),
            State::Before | State::After => {}
        }
    }

    /// Logits mask of the next token, if the reasoning must end.
    pub(crate) fn mask(&self) -> Option<&Arc<Mask>> {
        (self.state == State::Inside && self.left == 0).then_some(&self.close_mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: (u32, u32) = (7, 8);

    /// Number of leading tokens that are sampled before the end of the reasoning is forced.
    fn free(budget: usize, begun: bool, tokens: &[u32]) -> usize {
        let mut thinking = ThinkingBudget::new(budget, MARKS, 10, begun);
        let forced = |token: &u32| {
            let forced = thinking.mask().is_some();
            thinking.push(*token);
            forced
        };
        tokens.iter().position(forced).unwrap_or(tokens.len())
    }

    #[test]
    fn reasoning_ends_when_the_budget_is_used_up() {
        assert_eq!(free(2, true, &[1, 1, 1, 1]), 2);
        assert_eq!(
            free(2, false, &[7, 1, 1, 1]),
            3,
            "the opening token does not count"
        );
        assert_eq!(free(2, false, &[1, 1, 1, 1]), 4, "answer tokens do not count");
        assert_eq!(
            free(2, true, &[1, 8, 1, 1, 7, 1]),
            6,
            "tokens after the reasoning do not count"
        );
        assert_eq!(free(0, true, &[1]), 0);
        let used_up = ThinkingBudget::new(0, MARKS, 10, true);
        let mask = used_up.mask().unwrap();
        assert!((0..10).all(|token| mask.allows(token) == (token == MARKS.1)));
    }
}
