//! The state of one sequence in one layer that keeps no tokens: it has taken all of them in.

use rooflet_mlx::mlx_rs::Array;
use rooflet_mlx::mlx_rs::error::{Exception, Result};

use rooflet_mlx::gated_delta::State;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct RecurrentCache {
    /// Tokens taken in.
    tokens: i32,
    state: Option<State>,
    /// Before the last pass: it can be taken back.
    before: Option<(i32, Option<State>)>,
}

impl RecurrentCache {
    /// The state after `offset` tokens; `None` at the beginning.
    pub(crate) fn state(&mut self, offset: i32) -> Result<Option<State>> {
        if offset != self.tokens {
            match self.before.take() {
                Some((tokens, state)) if tokens == offset => {
                    self.tokens = tokens;
                    self.state = state;
                }
                Some(_) | None => return Err(Exception::custom("the state of this sequence is gone")),
            }
        }
        Ok(self.state.clone())
    }

    /// As it is after `tokens` tokens.
    pub(super) fn resumed(tokens: i32, state: State) -> Self {
        Self {
            tokens,
            state: Some(state),
            before: None,
        }
    }

    /// The state after `offset` tokens, which must be the last or those before the last pass.
    pub(super) fn at(&self, offset: i32) -> Result<State> {
        let before = self.before.as_ref().filter(|(tokens, _)| *tokens == offset);
        let state = if offset == self.tokens {
            self.state.as_ref()
        } else {
            before.and_then(|(_, state)| state.as_ref())
        };
        state
            .cloned()
            .ok_or_else(|| Exception::custom("the state of this sequence is gone"))
    }

    /// What it is `tokens` later.
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
