//! Sizes of a model's embeddings: the hidden size, and shorter ones if the model was trained for
//! them (Matryoshka embeddings). The fields of `config.json` are those that vLLM reads.

use serde_json::Value;

use rooflet_inference_api::openai::ApiError;

/// Supported sizes of a model's embeddings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EmbeddingSizes {
    hidden: usize,
    shorter: Shorter,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Shorter {
    None,
    Any,
    Listed(Vec<usize>),
}

impl EmbeddingSizes {
    /// Reads `matryoshka_dimensions` and `is_matryoshka` of a model with this hidden size.
    pub(super) fn new(config: Option<&Value>, hidden: usize) -> Self {
        let field = |name: &str| config.and_then(|config| config.get(name));
        let listed = field("matryoshka_dimensions").and_then(Value::as_array);
        let listed = listed.map(|sizes| {
            let sizes = sizes.iter().filter_map(Value::as_u64);
            sizes.filter_map(|size| usize::try_from(size).ok()).collect()
        });
        let is_matryoshka = field("is_matryoshka").and_then(Value::as_bool) == Some(true);
        Self {
            hidden,
            shorter: match listed {
                Some(listed) => Shorter::Listed(listed),
                None if is_matryoshka => Shorter::Any,
                None => Shorter::None,
            },
        }
    }

    /// Checks the requested size.
    pub(super) fn check(&self, dimensions: usize) -> Result<(), ApiError> {
        const NAME: &str = "dimensions";
        let hidden = self.hidden;
        match &self.shorter {
            _ if dimensions == hidden => Ok(()),
            Shorter::Any if dimensions < hidden => Ok(()),
            Shorter::Listed(sizes) if dimensions < hidden && sizes.contains(&dimensions) => Ok(()),
            Shorter::Any => Err(ApiError::invalid_value(
                NAME,
                format!("'{NAME}' must be at most {hidden}, the size of this model's embeddings."),
            )),
            Shorter::Listed(sizes) => {
                let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
                let sizes = sizes.join(", ");
                let message =
                    format!("'{NAME}' must be {hidden} or a size that this model supports: {sizes}.");
                Err(ApiError::invalid_value(NAME, message))
            }
            Shorter::None => Err(ApiError::unsupported(
                NAME,
                format!(
                    "'{NAME}' other than {hidden} is not supported for this model: its config.json declares no \
                     Matryoshka embeddings ('is_matryoshka' or 'matryoshka_dimensions')."
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn model_declares_sizes() {
        let check = |config: Value, size: usize| EmbeddingSizes::new(Some(&config), 8).check(size).is_ok();
        let accepted = |config: Value| {
            (1..10)
                .filter(|size| check(config.clone(), *size))
                .collect::<Vec<_>>()
        };
        assert_eq!(accepted(json!({})), [8]);
        assert_eq!(accepted(json!({"is_matryoshka": false})), [8]);
        assert_eq!(accepted(json!({"is_matryoshka": true})), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(accepted(json!({"matryoshka_dimensions": [2, 4, 9]})), [2, 4, 8]);
        let err = EmbeddingSizes::new(None, 8).check(4).unwrap_err();
        assert_eq!(err.param.as_deref(), Some("dimensions"));
    }
}
