//! Recurrent state of one sequence in a layer that keeps no tokens.

use rooflet_mlx::mlx_rs::Array;
use rooflet_mlx::mlx_rs::error::{Exception, Result};

use rooflet_mlx::gated_delta::State;

/// Recurrent state and the one before the last pass.
#[derive(Debug, Default)]
pub(crate) struct RecurrentCache {
    /// Number of tokens in the state.
    tokens: i32,
    state: Option<State>,
    /// State before the last pass, which can be undone.
    before: Option<(i32, Option<State>)>,
}

impl RecurrentCache {
    /// Returns the state after `offset` tokens; `None` before the first token. Undoes the last pass
    /// if `offset` is its start.
    pub(crate) fn state(&mut self, offset: i32) -> Result<Option<State>> {
        if offset != self.tokens {
            match self.before.take() {
                Some((tokens, state)) if tokens == offset => {
                    self.tokens = tokens;
                    self.state = state;
                }
                Some(_) | None => {
                    return Err(Exception::custom(
                        "the recurrent state at this position was discarded",
                    ));
                }
            }
        }
        Ok(self.state.clone())
    }

    /// Creates the cache from a state after `tokens` tokens.
    pub(super) fn resumed(tokens: i32, state: State) -> Self {
        Self {
            tokens,
            state: Some(state),
            before: None,
        }
    }

    /// Returns the state after `offset` tokens, which must be the end or the start of the last
    /// pass.
    pub(super) fn at(&self, offset: i32) -> Result<State> {
        let before = self.before.as_ref().filter(|(tokens, _)| *tokens == offset);
        let state = if offset == self.tokens {
            self.state.as_ref()
        } else {
            before.and_then(|(_, state)| state.as_ref())
        };
        state
            .cloned()
            .ok_or_else(|| Exception::custom("the recurrent state at this position was discarded"))
    }

    /// Sets the state after `tokens` more tokens.
    pub(crate) fn set(&mut self, tokens: i32, state: State) {
        self.before = Some((self.tokens, self.state.take()));
        self.tokens += tokens;
        self.state = Some(state);
    }

    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        arrays(&self.state)
    }

    pub(crate) fn bytes(&self) -> usize {
        let before = self.before.iter().flat_map(|(_, state)| arrays(state));
        self.arrays().chain(before).map(Array::nbytes).sum()
    }
}

fn arrays(state: &Option<State>) -> impl Iterator<Item = &Array> {
    state.iter().flat_map(|state| [&state.convolution, &state.memory])
}
