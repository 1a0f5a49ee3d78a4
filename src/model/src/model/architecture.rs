//! The families that the engine runs, by the `model_type` of their `config.json`, and what follows from the name alone.

use std::fmt;

/// A family of models that the engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    Gemma3Text,
    Glm4,
    Glm4Moe,
    GptOss,
    Llama,
    Mistral,
    Olmo2,
    Phi3,
    Qwen2,
    Qwen3,
    Qwen35,
    Qwen35Moe,
    Qwen3Moe,
    Qwen3Next,
    SmolLm3,
}

impl Architecture {
    /// Sorted by name.
    pub const ALL: [Self; 15] = [
        Self::Gemma3Text,
        Self::Glm4,
        Self::Glm4Moe,
        Self::GptOss,
        Self::Llama,
        Self::Mistral,
        Self::Olmo2,
        Self::Phi3,
        Self::Qwen2,
        Self::Qwen3,
        Self::Qwen35,
        Self::Qwen35Moe,
        Self::Qwen3Moe,
        Self::Qwen3Next,
        Self::SmolLm3,
    ];

    /// The `model_type` of config.json.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gemma3Text => "gemma3_text",
            Self::Glm4 => "glm4",
            Self::Glm4Moe => "glm4_moe",
            Self::GptOss => "gpt_oss",
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Olmo2 => "olmo2",
            Self::Phi3 => "phi3",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen35 => "qwen3_5",
            Self::Qwen35Moe => "qwen3_5_moe",
            Self::Qwen3Moe => "qwen3_moe",
            Self::Qwen3Next => "qwen3_next",
            Self::SmolLm3 => "smollm3",
        }
    }

    pub(super) fn parse(model_type: &str) -> Option<Self> {
        // Files of the text model alone, and Gemma 3 with the model that sees, which is left out.
        let name = match model_type {
            "gemma3" => "gemma3_text",
            _ => model_type
                .strip_suffix("_text")
                .filter(|name| name.starts_with("qwen3_5"))
                .unwrap_or(model_type),
        };
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }

    /// Whether checkpoints come with layers that predict further tokens, for speculation only.
    pub(crate) fn predicts(self) -> bool {
        match self {
            Self::Glm4Moe | Self::Qwen35 | Self::Qwen35Moe | Self::Qwen3Next => true,
            Self::Gemma3Text
            | Self::Glm4
            | Self::GptOss
            | Self::Llama
            | Self::Mistral
            | Self::Olmo2
            | Self::Phi3
            | Self::Qwen2
            | Self::Qwen3
            | Self::Qwen3Moe
            | Self::SmolLm3 => false,
        }
    }

    /// All of them, for messages.
    pub(super) fn names() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }

    /// The norms of a block.
    pub(super) fn block_norms(self) -> BlockNorms {
        match self {
            Self::Glm4Moe
            | Self::GptOss
            | Self::Llama
            | Self::Mistral
            | Self::Phi3
            | Self::Qwen2
            | Self::Qwen3
            | Self::Qwen35
            | Self::Qwen35Moe
            | Self::Qwen3Moe
            | Self::Qwen3Next
            | Self::SmolLm3 => BlockNorms {
                before_attention: Some("input_layernorm"),
                after_attention: None,
                before_feed_forward: Some("post_attention_layernorm"),
                after_feed_forward: None,
            },
            Self::Olmo2 => BlockNorms {
                before_attention: None,
                after_attention: Some("post_attention_layernorm"),
                before_feed_forward: None,
                after_feed_forward: Some("post_feedforward_layernorm"),
            },
            Self::Gemma3Text => BlockNorms {
                before_attention: Some("input_layernorm"),
                after_attention: Some("post_attention_layernorm"),
                before_feed_forward: Some("pre_feedforward_layernorm"),
                after_feed_forward: Some("post_feedforward_layernorm"),
            },
            Self::Glm4 => BlockNorms {
                before_attention: Some("input_layernorm"),
                after_attention: Some("post_self_attn_layernorm"),
                before_feed_forward: Some("post_attention_layernorm"),
                after_feed_forward: Some("post_mlp_layernorm"),
            },
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which norms a block has, by the names of their modules: before attention and feed-forward, and after them, on what is
/// added to the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockNorms {
    pub before_attention: Option<&'static str>,
    pub after_attention: Option<&'static str>,
    pub before_feed_forward: Option<&'static str>,
    pub after_feed_forward: Option<&'static str>,
}

impl BlockNorms {
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        [
            self.before_attention,
            self.after_attention,
            self.before_feed_forward,
            self.after_feed_forward,
        ]
        .into_iter()
        .flatten()
    }
}
