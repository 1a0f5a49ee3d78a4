//! Limits of the estimated cost of a schema's CEL rules.

use crate::FieldError;

/// Maximum cost of a rule, times its evaluations per object, and of a message expression.
const EXPRESSION_MAX: u64 = 10_000_000;
/// Maximum cost of all rules and message expressions of a schema.
const SCHEMA_MAX: u64 = 100_000_000;
/// Minimum cost of expressions that an error about the whole schema lists.
const LISTED_MIN: u64 = SCHEMA_MAX / 100;
/// Maximum number of expressions that an error about the whole schema lists.
const LISTED_MAX: usize = 4;

/// Costs of a schema's expressions.
#[derive(Debug, Default)]
pub(super) struct Costs {
    total: u64,
    /// Fields and costs of expensive expressions.
    expensive: Vec<(String, u64)>,
}

impl Costs {
    /// Adds an expression. Returns an error if the expression alone is too expensive.
    pub(super) fn add(&mut self, field: String, name: &str, cost: u64) -> Option<FieldError> {
        self.total = self.total.saturating_add(cost);
        let too_much = (cost > EXPRESSION_MAX).then(|| {
            let name = format!("estimated {name} cost");
            FieldError::forbidden(&field, &excess(&name, cost, EXPRESSION_MAX))
        });
        if cost >= LISTED_MIN {
            self.expensive.push((field, cost));
        }
        too_much
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.total = self.total.saturating_add(other.total);
        self.expensive.extend(other.expensive);
    }

    /// Returns the errors about the total cost of the schema in field `at`.
    pub(super) fn into_errors(self, at: &str) -> Vec<FieldError> {
        if self.total <= SCHEMA_MAX {
            return Vec::new();
        }
        let mut expensive = self.expensive;
        expensive.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
        expensive.truncate(LISTED_MAX);
        let detail =
            "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
        let mut errors: Vec<FieldError> = expensive
            .into_iter()
            .map(|(field, _)| FieldError::forbidden(field, detail))
            .collect();
        let name = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.push(FieldError::forbidden(at, &excess(name, self.total, SCHEMA_MAX)));
        errors
    }
}

/// Returns the text about a cost above its limit.
fn excess(name: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{name} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}
