//! Numbers: ranges and `multipleOf`.

use super::{Compiler, SchemaError};
use crate::grammar::NodeId;
use crate::grammar::numbers::{Bound, Step, integers, multiples, numbers};
use crate::grammar::product::{SetOperation, TooManyStates, combined};
use crate::grammar::schema::Schema;

/// Maximum `multipleOf`, in units of its last decimal: a grammar has a state for each remainder.
const MAX_STEP: u32 = 1_000;

impl<'a> Compiler<'a, '_> {
    pub(super) fn number(&mut self, schema: &Schema<'a>, whole: bool) -> Result<NodeId, SchemaError> {
        let (min, max) = schema.bounds()?;
        let (min, max) = (min.as_ref(), max.as_ref());
        let whole = match schema.number("multipleOf")?.and_then(|step| step.as_f64()) {
            None => whole,
            Some(1.0) => true,
            Some(step) => return self.multiple(schema, step, (whole, min, max)),
        };
        let range = self.range((whole, min, max));
        range.ok_or_else(|| schema.empty())
    }

    fn range(&mut self, range: (bool, Option<&Bound>, Option<&Bound>)) -> Option<NodeId> {
        match range {
            (true, None, None) => Some(self.rules.integer),
            (false, None, None) => Some(self.rules.number),
            (true, min, max) => integers(self.builder, min, max),
            (false, min, max) => numbers(self.builder, min, max),
        }
    }

    /// Builds the multiples of a step, digit by digit.
    fn multiple(
        &mut self,
        schema: &Schema<'a>,
        step: f64,
        (whole, min, max): (bool, Option<&Bound>, Option<&Bound>),
    ) -> Result<NodeId, SchemaError> {
        let unsupported = |keyword: &str| SchemaError::Unsupported {
            at: schema.at.clone(),
            keyword: keyword.to_owned(),
        };
        if step <= 0.0 {
            return Err(schema.invalid("multipleOf", "a number above 0"));
        }
        let Some(step) = Step::new(step).filter(|step| step.units <= MAX_STEP) else {
            return Err(unsupported("multipleOf of this value"));
        };
        let step = if whole { step.of_integers() } else { step };
        let multiples = multiples(self.builder, step);
        if min.is_none() && max.is_none() {
            return Ok(multiples);
        }
        let range = self.range((step.places == 0, min, max));
        let range = range.ok_or_else(|| schema.empty())?;
        let both = combined(self.builder, (range, multiples), SetOperation::Intersection);
        let both = both.map_err(|TooManyStates| unsupported("multipleOf with these bounds"))?;
        both.ok_or_else(|| schema.empty())
    }
}
