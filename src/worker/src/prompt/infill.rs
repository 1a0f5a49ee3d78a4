//! Prompts that fill a gap between two texts (fill in the middle), for models whose vocabulary has
//! the tokens for this task.

use super::{DEFAULT_COMPLETION_TOKENS, Prompter, ValidRequest};
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::request::Options;

/// Token texts of a family of models, in the order prefix, suffix, middle. The model generates the
/// middle after the third token.
struct Format {
    prefix: &'static str,
    suffix: &'static str,
    middle: &'static str,
    /// Token that ends the middle, if it is not an end-of-sequence token of the model.
    end: Option<&'static str>,
}

const FORMATS: [Format; 5] = [
    // Qwen2.5-Coder, Qwen3-Coder, CodeGemma.
    Format {
        prefix: "<|fim_prefix|>",
        suffix: "<|fim_suffix|>",
        middle: "<|fim_middle|>",
        end: Some("<|fim_pad|>"),
    },
    // StarCoder, StarCoder2, Granite Code.
    Format {
        prefix: "<fim_prefix>",
        suffix: "<fim_suffix>",
        middle: "<fim_middle>",
        end: None,
    },
    // SantaCoder.
    Format {
        prefix: "<fim-prefix>",
        suffix: "<fim-suffix>",
        middle: "<fim-middle>",
        end: None,
    },
    // DeepSeek-Coder, DeepSeek V2 and V3.
    Format {
        prefix: "<｜fim▁begin｜>",
        suffix: "<｜fim▁hole｜>",
        middle: "<｜fim▁end｜>",
        end: None,
    },
    // CodeLlama.
    Format {
        prefix: "▁<PRE>",
        suffix: "▁<SUF>",
        middle: "▁<MID>",
        end: Some("▁<EOT>"),
    },
];

/// Token ids of a [`Format`].
struct Marks {
    prefix: u32,
    suffix: u32,
    middle: u32,
    end: Option<u32>,
}

impl Prompter {
    /// Returns true if the vocabulary has the tokens to fill in the middle.
    pub(crate) fn can_infill(&self) -> bool {
        self.marks().is_some()
    }

    /// Validates a request of `/v1/completions` with the text before and after the answer.
    pub(crate) fn infill(
        &self,
        before: &str,
        after: &str,
        options: &Options,
    ) -> Result<ValidRequest, ApiError> {
        let marks = self.marks().ok_or_else(|| {
            let message = "'suffix' is not supported for this model: its vocabulary has no tokens to fill in \
                           the middle, such as <|fim_prefix|>, <|fim_suffix|> and <|fim_middle|>.";
            ApiError::unsupported("suffix", message)
        })?;
        self.check_length("prompt", before)?;
        self.check_length("suffix", after)?;
        let encoded = |param: &str, text: &str| {
            let tokens = self.tokenizer.encode_chat(text);
            tokens.map_err(|err| ApiError::invalid_value(param, err.to_string()))
        };
        let tokens = [
            self.initial_tokens(),
            vec![marks.prefix],
            encoded("prompt", before)?,
            vec![marks.suffix],
            self.encode_continued(after)
                .map_or_else(|| encoded("suffix", after), Ok)?,
            vec![marks.middle],
        ];
        let mut request =
            self.build_request("prompt", tokens.concat(), options, DEFAULT_COMPLETION_TOKENS)?;
        request.continues_prompt = true;
        request.constraint = self.text_constraint(options)?;
        let ends = marks.end.filter(|end| !self.tokenizer.is_eos(*end));
        request.stopping.token_ids.extend(ends);
        Ok(request)
    }

    /// Returns the tokens of the first format that the vocabulary has.
    fn marks(&self) -> Option<Marks> {
        let token = |text: &str| self.tokenizer.token_id(text).filter(|id| *id < self.vocab_size);
        FORMATS.iter().find_map(|format| {
            Some(Marks {
                prefix: token(format.prefix)?,
                suffix: token(format.suffix)?,
                middle: token(format.middle)?,
                end: format.end.and_then(token),
            })
        })
    }

    /// Tokenizes a text without the space that some tokenizers add at the beginning. Returns `None`
    /// for tokenizers that do not add one.
    fn encode_continued(&self, text: &str) -> Option<Vec<u32>> {
        // A line break that is a byte token does not merge with the text after it.
        const LINE: &str = "\n";
        let line = self.tokenizer.encode_chat(LINE).ok()?;
        let is_space = line.first().and_then(|token| self.tokenizer.token_text(*token))? == "\u{2581}";
        let is_byte = line.get(1).and_then(|token| self.tokenizer.token_text(*token))? == "<0x0A>";
        let tokens = self.tokenizer.encode_chat(&format!("{LINE}{text}")).ok()?;
        let rest = tokens.strip_prefix(&line[..])?;
        (is_space && is_byte && line.len() == 2).then(|| rest.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{edited, prompter};
    use super::*;
    use rooflet_inference_api::openai::error::ErrorCode;

    /// Replaces vocabulary entries by added special tokens with these texts.
    fn with_tokens(texts: &[&str]) -> Prompter {
        edited(|tokenizer, _| {
            for (place, text) in texts.iter().enumerate() {
                let id = 1000 + place;
                let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
                let old = vocab.iter().find(|(_, own)| own.as_u64() == Some(id as u64));
                let old = old.unwrap().0.clone();
                vocab.remove(&old);
                vocab.insert((*text).to_owned(), json!(id));
                let merges = tokenizer["model"]["merges"].as_array_mut().unwrap();
                // A merge is a pair, as a list or as a text with a space.
                let parts = |merge: &Value| -> Vec<String> {
                    match merge.as_str() {
                        Some(pair) => pair.split(' ').map(str::to_owned).collect(),
                        None => serde_json::from_value(merge.clone()).unwrap(),
                    }
                };
                merges.retain(|merge| {
                    let parts = parts(merge);
                    parts.concat() != old && !parts.contains(&old)
                });
                let added = json!({"id": id, "content": text, "single_word": false, "lstrip": false,
                                   "rstrip": false, "normalized": false, "special": true});
                tokenizer["added_tokens"].as_array_mut().unwrap().push(added);
            }
        })
        .unwrap()
    }

    /// The order of Qwen2.5-Coder's model card and of DeepSeek-Coder's README.
    #[test]
    fn prompt_has_prefix_suffix_and_middle_tokens() {
        for marks in [
            ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
            ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
            ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
        ] {
            let prompter = with_tokens(&marks);
            let options = Options::default();
            let request = prompter.infill("def f():", "return 1", &options).unwrap();
            let text = prompter.tokenizer().decode_with_special(&request.prompt).unwrap();
            let [prefix, suffix, middle] = marks;
            assert_eq!(text, format!("{prefix}def f():{suffix}return 1{middle}"));
            assert_eq!(request.max_tokens, DEFAULT_COMPLETION_TOKENS);
        }
    }

    #[test]
    fn padding_token_ends_answer_of_qwen() {
        let prompter = with_tokens(&[
            "<|fim_prefix|>",
            "<|fim_suffix|>",
            "<|fim_middle|>",
            "<|fim_pad|>",
        ]);
        let request = prompter.infill("a", "b", &Options::default()).unwrap();
        assert_eq!(request.stopping.token_ids, [1003]);
    }

    #[test]
    fn model_without_tokens_rejects_suffix() {
        for prompter in [prompter(100), with_tokens(&["<|fim_prefix|>", "<|fim_suffix|>"])] {
            let err = prompter.infill("a", "b", &Options::default()).unwrap_err();
            let expected = (Some("suffix"), Some(ErrorCode::UnsupportedParameter));
            assert_eq!((err.param.as_deref(), err.code), expected);
        }
    }
}
