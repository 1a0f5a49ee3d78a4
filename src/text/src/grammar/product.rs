//! Two rules as one: the texts that both have, or those of the one that the other has not. A text
//! that cannot end as one of these is not begun.

use std::collections::HashMap;
use std::sync::Arc;

use super::matcher::{Automaton, DEAD, StateId, TooAmbiguous};
use super::{Builder, ByteSet, Grammar, NodeId, RETURN};

/// More would take more time than an answer is worth.
const MAX_STATES: usize = 20_000;
/// Places of both rules over all states, in all products of a grammar.
const MAX_PLACES: usize = 1_000_000;

/// What is wanted of two rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Both,
    OnlyTheFirst,
}

/// The rules have too many states together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it takes too many states to hold to together with what else is asked; shorter lengths may help")]
pub struct TooManyStates;

impl From<TooAmbiguous> for TooManyStates {
    fn from(TooAmbiguous: TooAmbiguous) -> Self {
        Self
    }
}

/// States of both rules, the start first.
struct Product {
    states: Vec<State>,
    numbers: HashMap<(StateId, StateId), usize>,
}

struct State {
    of: (StateId, StateId),
    accepting: bool,
    next: Vec<(ByteSet, usize)>,
}

/// A rule of the texts that are wanted; `None` where there are none.
pub(super) fn combined(
    builder: &mut Builder,
    rules: (NodeId, NodeId),
    wanted: Wanted,
) -> Result<Option<NodeId>, TooManyStates> {
    // Lent, not copied.
    let grammar = Arc::new(Grammar {
        nodes: std::mem::take(&mut builder.nodes),
        start: rules.0,
    });
    let product = Product::new(&grammar, rules, wanted, &mut builder.places);
    builder.nodes = Arc::into_inner(grammar).expect("nobody keeps it").nodes;
    Ok(product?.rule(builder))
}

impl Product {
    fn new(
        grammar: &Arc<Grammar>,
        rules: (NodeId, NodeId),
        wanted: Wanted,
        places: &mut usize,
    ) -> Result<Self, TooManyStates> {
        let mut automaton = Automaton::new(Arc::clone(grammar))?;
        let start = (automaton.start_of(rules.0)?, automaton.start_of(rules.1)?);
        let mut product = Self {
            states: Vec::new(),
            numbers: HashMap::new(),
        };
        product.number(&automaton, wanted, start);
        let mut place = 0;
        while let Some(State { of, .. }) = product.states.get(place) {
            let (first, second) = *of;
            let mut next: Vec<(ByteSet, usize)> = Vec::new();
            for byte in 0..=u8::MAX {
                let to = (automaton.step(first, byte)?, automaton.step(second, byte)?);
                if to.0 == DEAD || (to.1 == DEAD && wanted == Wanted::Both) {
                    continue;
                }
                let number = product.number(&automaton, wanted, to);
                match next.iter_mut().find(|(_, own)| *own == number) {
                    Some((bytes, _)) => bytes.insert(byte),
                    None => next.push((ByteSet::of(&[byte]), number)),
                }
            }
            *places += automaton.places(first).count() + automaton.places(second).count();
            if product.states.len() > MAX_STATES || *places > MAX_PLACES {
                return Err(TooManyStates);
            }
            product.states[place].next = next;
            place += 1;
        }
        Ok(product)
    }

    fn number(&mut self, automaton: &Automaton, wanted: Wanted, of: (StateId, StateId)) -> usize {
        let states = &mut self.states;
        *self.numbers.entry(of).or_insert_with(|| {
            let accepts = |state| automaton.places(state).is_accepting();
            states.push(State {
                of,
                accepting: accepts(of.0) && accepts(of.1) == (wanted == Wanted::Both),
                next: Vec::new(),
            });
            states.len() - 1
        })
    }

    /// Which states lead to the end of a text.
    fn live(&self) -> Vec<bool> {
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); self.states.len()];
        for (place, state) in self.states.iter().enumerate() {
            state.next.iter().for_each(|(_, to)| before[*to].push(place));
        }
        let mut live: Vec<bool> = self.states.iter().map(|state| state.accepting).collect();
        let mut open: Vec<usize> = (0..live.len()).filter(|place| live[*place]).collect();
        while let Some(place) = open.pop() {
            for from in &before[place] {
                if !std::mem::replace(&mut live[*from], true) {
                    open.push(*from);
                }
            }
        }
        live
    }

    fn rule(&self, builder: &mut Builder) -> Option<NodeId> {
        let live = self.live();
        let nodes: Vec<Option<NodeId>> = live
            .into_iter()
            .map(|live| live.then(|| builder.reserve()))
            .collect();
        let mut steps: HashMap<(ByteSet, NodeId), NodeId> = HashMap::new();
        for (state, node) in self.states.iter().zip(&nodes) {
            let Some(node) = node else { continue };
            let mut ways: Vec<NodeId> = Vec::new();
            for (bytes, to) in &state.next {
                let Some(to) = nodes[*to] else { continue };
                let step = steps.entry((*bytes, to));
                ways.push(*step.or_insert_with(|| builder.bytes(*bytes, to)));
            }
            ways.extend(state.accepting.then_some(RETURN));
            let ways = builder.any_of(ways);
            builder.define(*node, ways);
        }
        nodes.first().copied().flatten()
    }
}
