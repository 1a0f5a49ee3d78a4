//! Conversion of checkpoint layouts. The engine uses the names and shapes of `mlx_lm.convert`. This
//! module maps the layouts of other tools to them: each tensor has a list of stored tensors and
//! transformations.

use std::collections::BTreeMap;

use super::{CheckpointError, StoredTensor, StoredType, TensorTable};
use crate::config::{ExpertsConfig, FeedForwardConfig, ModelConfig, text_name};

/// Derivation of a tensor from stored tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSource {
    /// Names of the stored tensors. Several tensors are stacked along a new first axis.
    pub stored: Vec<String>,
    /// Transformations, in order.
    pub steps: Vec<Step>,
}

/// Transformation of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Joins the bytes of the last two axes to words of 32 bits in one axis.
    PackWords,
    /// Selects every second slice along an axis, starting at the first or second slice.
    EverySecond { axis: usize, from: usize },
    /// Selects one half of an axis.
    Half { axis: usize, second: bool },
    /// Swaps the last two axes.
    SwapLast,
    /// Adds one to every element.
    AddOne,
}

/// Checkpoint in the engine's layout.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) tensors: TensorTable,
    /// Sources of the tensors that are not stored in this layout.
    pub(super) sources: BTreeMap<String, TensorSource>,
}

impl Layout {
    pub(super) fn new(config: &ModelConfig, stored: &TensorTable) -> Result<Self, CheckpointError> {
        let mut layout = Self {
            tensors: TensorTable::default(),
            sources: BTreeMap::new(),
        };
        let experts = config.layers.iter().find_map(|layer| match &layer.feed_forward {
            FeedForwardConfig::Experts(experts) => Some(experts),
            FeedForwardConfig::Dense(_) => None,
        });
        let mut stacks: BTreeMap<String, BTreeMap<u32, &str>> = BTreeMap::new();
        let by_transformers = is_by_transformers(stored);
        for (name, tensor) in stored.iter() {
            let own = if config.is_multimodal {
                text_name(name)
            } else {
                name.clone()
            };
            let stack = experts.and_then(|experts| one_expert(&own, experts));
            if let Some((stack, expert)) = stack {
                stacks.entry(stack).or_default().insert(expert, name);
            } else if config.architecture.packs_gate_with_up {
                layout.insert_gpt_oss(name, tensor);
            } else if let Some(steps) = recurrent_steps(&own, by_transformers) {
                layout.insert_changed(&own, name, tensor, steps);
            } else if let (Some(experts), Some((module, part))) = (experts, own.split_once(".mlp.experts.")) {
                let stack = format!("{module}.mlp.{}", experts.names.experts);
                layout.insert_experts(&stack, part, name, tensor);
            } else {
                layout.insert_changed(&own, name, tensor, &[]);
            }
        }
        for (stack, parts) in stacks {
            layout.stack(
                config,
                &stack,
                &parts,
                experts.map_or(0, |experts| experts.experts),
                stored,
            )?;
        }
        Ok(layout)
    }

    fn insert(&mut self, name: &str, tensor: StoredTensor) {
        self.tensors.tensors.insert(name.to_owned(), tensor);
    }

    /// Adds the stack of the experts' separate tensors.
    fn stack(
        &mut self,
        config: &ModelConfig,
        name: &str,
        parts: &BTreeMap<u32, &str>,
        experts: u32,
        stored: &TensorTable,
    ) -> Result<(), CheckpointError> {
        let (_, first) = parts.first_key_value().expect("a stack has at least one part");
        let like = stored.get(first).expect("the parts are names of stored tensors");
        let mut names = Vec::with_capacity(parts.len());
        for expert in 0..experts {
            let part = parts.get(&expert).copied();
            let name = part.map_or_else(|| of_expert(name, expert), str::to_owned);
            let Some(tensor) = stored.get(&name) else {
                return Err(CheckpointError::MissingTensor {
                    tensor: name,
                    architecture: config.architecture.to_string(),
                });
            };
            if (tensor.dtype, &tensor.shape) != (like.dtype, &like.shape) {
                return Err(CheckpointError::ShapeMismatch {
                    file: tensor.file.clone(),
                    tensor: name,
                    found: tensor.shape.clone(),
                    expected: like.shape.clone(),
                });
            }
            names.push(name);
        }
        if let Some((_, beyond)) = parts.range(experts..).next() {
            return Err(CheckpointError::UnknownTensor {
                file: stored
                    .get(beyond)
                    .map_or_else(String::new, |tensor| tensor.file.clone()),
                tensor: (*beyond).to_owned(),
                architecture: config.architecture.to_string(),
            });
        }
        let mut shape = vec![u64::from(experts)];
        shape.extend(&like.shape);
        let tensor = StoredTensor {
            shape,
            bytes: like.bytes * u64::from(experts),
            ..like.clone()
        };
        self.insert_derived(name, tensor, names, Vec::new());
        Ok(())
    }

    fn insert_derived(&mut self, name: &str, tensor: StoredTensor, stored: Vec<String>, steps: Vec<Step>) {
        self.insert(name, tensor);
        self.sources
            .insert(name.to_owned(), TensorSource { stored, steps });
    }

    /// Adds `stored` under the name `own` after `steps`. If its shape does not permit the steps,
    /// the tensor is added unchanged and the survey reports it.
    fn insert_changed(&mut self, own: &str, stored: &str, tensor: &StoredTensor, steps: &[Step]) {
        let derived = steps
            .iter()
            .try_fold(tensor.clone(), |tensor, step| step.apply(tensor));
        match derived {
            Some(derived) if !steps.is_empty() || own != stored => {
                self.insert_derived(own, derived, vec![stored.to_owned()], steps.to_vec());
            }
            Some(_) | None => self.insert(stored, tensor.clone()),
        }
    }

    /// Adds the tensors of all experts. Transformers 5 stores gate and up in one tensor.
    fn insert_experts(&mut self, stack: &str, part: &str, stored: &str, tensor: &StoredTensor) {
        let half = |second| [Step::Half { axis: 1, second }];
        match part {
            "gate_up_proj" => {
                self.insert_changed(&format!("{stack}.gate_proj.weight"), stored, tensor, &half(false));
                self.insert_changed(&format!("{stack}.up_proj.weight"), stored, tensor, &half(true));
            }
            "down_proj" => self.insert_changed(&format!("{stack}.down_proj.weight"), stored, tensor, &[]),
            _ => self.insert(stored, tensor.clone()),
        }
    }

    /// Adds a tensor in the layout of the original gpt-oss files. Experts have interleaved gate and
    /// up rows, in blocks of bytes with scales, or as transposed floats.
    fn insert_gpt_oss(&mut self, name: &str, tensor: &StoredTensor) {
        let Some((module, leaf)) = name.rsplit_once('.') else {
            return self.insert(name, tensor.clone());
        };
        let (projection, suffix, steps): (&str, &str, &[Step]) = match leaf {
            "gate_up_proj_blocks" => ("gate_up", "weight", &[Step::PackWords]),
            "gate_up_proj_scales" => ("gate_up", "scales", &[]),
            "gate_up_proj_bias" => ("gate_up", "bias", &[]),
            "gate_up_proj" => ("gate_up", "weight", &[Step::SwapLast]),
            "down_proj_blocks" => ("down_proj", "weight", &[Step::PackWords]),
            "down_proj_scales" => ("down_proj", "scales", &[]),
            "down_proj_bias" => ("down_proj", "bias", &[]),
            "down_proj" => ("down_proj", "weight", &[Step::SwapLast]),
            _ => return self.insert(name, tensor.clone()),
        };
        let derived = steps
            .iter()
            .try_fold(tensor.clone(), |tensor, step| step.apply(tensor));
        let Some(derived) = derived else {
            // The shape does not match this layout; the survey reports it.
            return self.insert(name, tensor.clone());
        };
        if projection != "gate_up" {
            return self.insert_derived(
                &format!("{module}.{projection}.{suffix}"),
                derived,
                vec![name.to_owned()],
                steps.to_vec(),
            );
        }
        for (from, part) in ["gate_proj", "up_proj"].into_iter().enumerate() {
            let half = Step::EverySecond { axis: 1, from };
            let Some(part_tensor) = half.apply(derived.clone()) else {
                return self.insert(name, tensor.clone());
            };
            let steps = steps.iter().copied().chain([half]).collect();
            self.insert_derived(
                &format!("{module}.{part}.{suffix}"),
                part_tensor,
                vec![name.to_owned()],
                steps,
            );
        }
    }
}

impl Step {
    /// Applies the transformation. Returns `None` if the shape does not permit it.
    fn apply(self, mut tensor: StoredTensor) -> Option<StoredTensor> {
        match self {
            Self::PackWords => {
                let [.., groups, group] = tensor.shape[..] else {
                    return None;
                };
                if tensor.dtype != StoredType::U8 || group % 4 != 0 {
                    return None;
                }
                tensor.shape.truncate(tensor.shape.len() - 2);
                tensor.shape.push(groups.checked_mul(group / 4)?);
                tensor.dtype = StoredType::U32;
            }
            Self::EverySecond { axis, .. } => {
                let size = tensor.shape.get_mut(axis)?;
                if *size % 2 != 0 {
                    return None;
                }
                *size /= 2;
                tensor.bytes /= 2;
            }
            Self::Half { axis, .. } => {
                let size = tensor.shape.get_mut(axis)?;
                if *size % 2 != 0 {
                    return None;
                }
                *size /= 2;
                tensor.bytes /= 2;
            }
            Self::AddOne => {}
            Self::SwapLast => {
                let axes = tensor.shape.len();
                if axes < 2 {
                    return None;
                }
                tensor.shape.swap(axes - 2, axes - 1);
            }
        }
        Some(tensor)
    }
}

/// Returns whether transformers wrote the checkpoint of a hybrid model. Its convolutions have
/// another order of axes than those of converted checkpoints.
fn is_by_transformers(stored: &TensorTable) -> bool {
    stored
        .iter()
        .any(|(name, tensor)| name.ends_with("conv1d.weight") && tensor.shape.last() != Some(&1))
}

/// Returns the conversion of a hybrid model's tensor: convolutions, and norms whose stored weight
/// is relative to one.
fn recurrent_steps(name: &str, by_transformers: bool) -> Option<&'static [Step]> {
    const FROM_ONE: [&str; 5] = [
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
        "model.norm.weight",
        "q_norm.weight",
        "k_norm.weight",
    ];
    if !by_transformers {
        None
    } else if name.ends_with("conv1d.weight") {
        Some(&[Step::SwapLast])
    } else if FROM_ONE.iter().any(|norm| name.ends_with(norm)) {
        Some(&[Step::AddOne])
    } else {
        None
    }
}

/// Returns the stack and the expert of a tensor: `….mlp.experts.7.up_proj.weight` is part 7 of
/// `….mlp.switch_mlp.up_proj.weight`.
fn one_expert(name: &str, experts: &ExpertsConfig) -> Option<(String, u32)> {
    let (module, rest) = name.split_once(".mlp.experts.")?;
    let (expert, leaf) = rest.split_once('.')?;
    let expert = expert.parse().ok()?;
    Some((format!("{module}.mlp.{}.{leaf}", experts.names.experts), expert))
}

fn of_expert(stack: &str, expert: u32) -> String {
    match stack.split_once(".mlp.") {
        Some((module, rest)) => {
            let leaf = rest.split_once('.').map_or(rest, |(_, leaf)| leaf);
            format!("{module}.mlp.experts.{expert}.{leaf}")
        }
        None => stack.to_owned(),
    }
}
