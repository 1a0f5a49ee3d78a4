//! Constants as a vector: logarithms of all numbers in a parameter tree, with their priors.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::least_squares::Prior;

/// Numbers of a tree in the order of its keys.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ParameterVector {
    tree: Value,
    pub(super) priors: Vec<Prior>,
}

impl ParameterVector {
    /// Creates the vector of `parameters`. `prior_tree` has the same shape, with `{"mean": …,
    /// "deviation": …}` in place of each number, or in place of a map or list for all numbers in
    /// it. `deviation` is that of the logarithm.
    pub(super) fn new<P: Serialize>(parameters: &P, prior_tree: &Value) -> Self {
        let tree = serde_json::to_value(parameters).expect("parameters are plain data");
        let mut priors = Vec::new();
        visit(&tree, prior_tree, &mut |prior| {
            let number = |name: &str| {
                prior[name]
                    .as_f64()
                    .expect("prior.json has a mean and a deviation for every constant")
            };
            priors.push(Prior {
                mean: number("mean").ln(),
                deviation: number("deviation"),
            });
        });
        Self { tree, priors }
    }

    /// Returns the logarithms of the tree's numbers.
    pub(super) fn logarithms(&self) -> Vec<f64> {
        let mut values = Vec::new();
        visit_numbers(&self.tree, &mut |value| values.push(value.ln()));
        values
    }

    /// Returns the tree with these logarithms.
    pub(super) fn with<P: DeserializeOwned>(&self, logarithms: &[f64]) -> P {
        let mut tree = self.tree.clone();
        let mut values = logarithms.iter();
        replace(&mut tree, &mut || {
            values
                .next()
                .map(|value| value.exp())
                .expect("one logarithm per number")
        });
        serde_json::from_value(tree).expect("the shape of the tree does not change")
    }
}

fn visit(tree: &Value, prior_tree: &Value, found: &mut impl FnMut(&Value)) {
    let shared = prior_tree.get("mean").is_some();
    let of = |key: &str, index: usize| {
        if shared {
            prior_tree
        } else if prior_tree.is_array() {
            &prior_tree[index]
        } else {
            &prior_tree[key]
        }
    };
    if let Some(map) = tree.as_object() {
        for (index, (key, value)) in map.iter().enumerate() {
            visit(value, of(key, index), found);
        }
    } else if let Some(list) = tree.as_array() {
        for (index, value) in list.iter().enumerate() {
            visit(value, of("", index), found);
        }
    } else {
        found(prior_tree);
    }
}

fn visit_numbers(tree: &Value, found: &mut impl FnMut(f64)) {
    if let Some(map) = tree.as_object() {
        map.values().for_each(|value| visit_numbers(value, found));
    } else if let Some(list) = tree.as_array() {
        list.iter().for_each(|value| visit_numbers(value, found));
    } else if let Some(number) = tree.as_f64() {
        found(number);
    }
}

fn replace(tree: &mut Value, next: &mut impl FnMut() -> f64) {
    if let Some(map) = tree.as_object_mut() {
        map.values_mut().for_each(|value| replace(value, next));
    } else if let Some(list) = tree.as_array_mut() {
        list.iter_mut().for_each(|value| replace(value, next));
    } else {
        *tree = Value::from(next());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    #[test]
    fn tree_round_trips_through_its_logarithms() {
        let tree = BTreeMap::from([("a", vec![1.0, 2.0]), ("b", vec![3.0])]);
        let prior_tree = json!({"a": {"mean": 1, "deviation": 0.1}, "b": [{"mean": 4, "deviation": 0.5}]});
        let vector = ParameterVector::new(&tree, &prior_tree);
        assert_eq!(
            vector
                .priors
                .iter()
                .map(|prior| prior.deviation)
                .collect::<Vec<_>>(),
            [0.1, 0.1, 0.5]
        );
        let mut logarithms = vector.logarithms();
        logarithms[2] = 5f64.ln();
        let back: BTreeMap<String, Vec<f64>> = vector.with(&logarithms);
        assert!((back["b"][0] - 5.0).abs() < 1e-12 && (back["a"][1] - 2.0).abs() < 1e-12);
    }
}
