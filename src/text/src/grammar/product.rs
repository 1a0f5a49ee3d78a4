//! Intersection and difference of two rules. The result never starts a text that cannot be
//! completed.

use std::collections::HashMap;
use std::sync::Arc;

use super::matcher::{Automaton, DEAD, StateId, TooAmbiguous};
use super::unique::UniqueLists;
use super::{Builder, ByteSet, Grammar, NodeId, RETURN};

/// Maximum number of states of a product.
const MAX_STATES: usize = 20_000;
/// Maximum number of positions of both rules over all states, in all products of a grammar.
const MAX_POSITIONS: usize = 1_000_000;

/// Operation on the texts of two rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SetOperation {
    Intersection,
    Difference,
}

/// Error: the product of two rules has too many states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its combination with the other constraints has too many states; use shorter lengths")]
pub struct TooManyStates;

impl From<TooAmbiguous> for TooManyStates {
    fn from(TooAmbiguous: TooAmbiguous) -> Self {
        Self
    }
}

/// Product automaton of two rules, the start state first.
struct Product {
    states: Vec<State>,
    numbers: HashMap<(StateId, StateId), usize>,
}

struct State {
    of: (StateId, StateId),
    accepting: bool,
    next: Vec<(ByteSet, usize)>,
}

/// Builds the combination of two rules, or `None` if it has no texts.
pub(super) fn combined(
    builder: &mut Builder,
    rules: (NodeId, NodeId),
    operation: SetOperation,
) -> Result<Option<NodeId>, TooManyStates> {
    // The automaton needs shared ownership of the nodes for a while.
    let grammar = Arc::new(Grammar {
        nodes: std::mem::take(&mut builder.nodes),
        start: rules.0,
        // Products are rules of strings.
        unique_lists: UniqueLists::new(),
    });
    let product = Product::new(&grammar, rules, operation, &mut builder.product_positions);
    builder.nodes = Arc::into_inner(grammar).expect("the automaton is dropped").nodes;
    Ok(product?.rule(builder))
}

impl Product {
    fn new(
        grammar: &Arc<Grammar>,
        rules: (NodeId, NodeId),
        operation: SetOperation,
        positions: &mut usize,
    ) -> Result<Self, TooManyStates> {
        let mut automaton = Automaton::new(Arc::clone(grammar))?;
        let start = (automaton.start_of(rules.0)?, automaton.start_of(rules.1)?);
        let mut product = Self {
            states: Vec::new(),
            numbers: HashMap::new(),
        };
        product.number(&automaton, operation, start);
        let mut index = 0;
        while let Some(State { of, .. }) = product.states.get(index) {
            let (first, second) = *of;
            let mut next: Vec<(ByteSet, usize)> = Vec::new();
            for byte in 0..=u8::MAX {
                let to = (automaton.step(first, byte)?, automaton.step(second, byte)?);
                if to.0 == DEAD || (to.1 == DEAD && operation == SetOperation::Intersection) {
                    continue;
                }
                let number = product.number(&automaton, operation, to);
                match next.iter_mut().find(|(_, own)| *own == number) {
                    Some((bytes, _)) => bytes.insert(byte),
                    None => next.push((ByteSet::of(&[byte]), number)),
                }
            }
            *positions += automaton.positions(first).count() + automaton.positions(second).count();
            if product.states.len() > MAX_STATES || *positions > MAX_POSITIONS {
                return Err(TooManyStates);
            }
            product.states[index].next = next;
            index += 1;
        }
        Ok(product)
    }

    fn number(&mut self, automaton: &Automaton, operation: SetOperation, of: (StateId, StateId)) -> usize {
        let states = &mut self.states;
        *self.numbers.entry(of).or_insert_with(|| {
            let accepts = |state| automaton.positions(state).is_accepting();
            states.push(State {
                of,
                accepting: accepts(of.0) && accepts(of.1) == (operation == SetOperation::Intersection),
                next: Vec::new(),
            });
            states.len() - 1
        })
    }

    /// Returns for each state whether an accepting state is reachable.
    fn live(&self) -> Vec<bool> {
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); self.states.len()];
        for (index, state) in self.states.iter().enumerate() {
            state.next.iter().for_each(|(_, to)| before[*to].push(index));
        }
        let mut live: Vec<bool> = self.states.iter().map(|state| state.accepting).collect();
        let mut open: Vec<usize> = (0..live.len()).filter(|index| live[*index]).collect();
        while let Some(index) = open.pop() {
            for from in &before[index] {
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
            let mut branches: Vec<NodeId> = Vec::new();
            for (bytes, to) in &state.next {
                let Some(to) = nodes[*to] else { continue };
                let step = steps.entry((*bytes, to));
                branches.push(*step.or_insert_with(|| builder.bytes(*bytes, to)));
            }
            branches.extend(state.accepting.then_some(RETURN));
            let branches = builder.any_of(branches);
            builder.define(*node, branches);
        }
        nodes.first().copied().flatten()
    }
}
