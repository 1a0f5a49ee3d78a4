//! The gated delta rule (Gated DeltaNet, arXiv:2412.06464) in three kernels for a GPU, where MLX's
//! operations are some forty for each layer and token. Sums are in float32 and only what is passed
//! on is rounded to the model's type, so results are those of the operations up to rounding, and
//! the same however tokens are divided into calls.
#![expect(unsafe_code, reason = "kernels are run here, behind checks of all shapes")]

use mlx_rs::error::{Exception, Result};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{concatenate, split_equal};
use mlx_rs::{Array, Dtype};

use super::backend::Backend;
use super::kernel::{Kernel, LANES, Launch, Source};

/// The most rows that are computed in one launch, which has a state for each of them, needed or
/// not.
const MOST_ROWS: usize = 8;

/// Of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dimensions {
    pub key_heads: i32,
    pub key_dim: i32,
    pub value_heads: i32,
    pub value_dim: i32,
    /// Tokens that the convolution sees.
    pub width: i32,
}

impl Dimensions {
    /// Of queries, keys and values together.
    pub fn channels(&self) -> i32 {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    fn constants(&self) -> [(&'static str, i32); 5] {
        [
            ("KEY_HEADS", self.key_heads),
            ("KEY_DIM", self.key_dim),
            ("VALUE_HEADS", self.value_heads),
            ("VALUE_DIM", self.value_dim),
            ("WIDTH", self.width),
        ]
    }

    /// Whether vectors are divided evenly among the threads, which have few numbers each.
    fn suit(&self) -> bool {
        let vector = |dim: i32| dim > 0 && dim % LANES == 0 && dim <= 8 * LANES;
        vector(self.key_dim)
            && vector(self.value_dim)
            && self.key_heads > 0
            && self.value_heads > 0
            && self.value_heads % self.key_heads == 0
            && self.width > 1
    }
}

/// What a layer's weights say of it.
#[derive(Debug)]
pub struct Constants<'a> {
    /// `[channels, width, 1]`.
    pub convolution: &'a Array,
    /// `[value_heads]`.
    pub decay_bias: &'a Array,
    /// −exp of the logarithm of each head's decay rate, `[value_heads]` in float32.
    pub rate: &'a Array,
}

/// What came out of a layer's projections.
#[derive(Debug)]
pub struct Tokens<'a> {
    /// Queries, keys and values, `[rows, tokens, channels]`.
    pub mixed: &'a Array,
    /// `[rows, tokens, value_heads]`.
    pub strength: &'a Array,
    /// As `strength`.
    pub decay: &'a Array,
}

/// Of one sequence in one layer, after some tokens.
#[derive(Debug, Clone)]
pub struct State {
    /// What the convolution has yet to see again, `[1, width - 1, channels]`.
    pub convolution: Array,
    /// `[1, value_heads, value_dim, key_dim]`, float32.
    pub memory: Array,
}

impl State {
    /// Those of rows that were computed together.
    pub fn split(convolutions: &Array, memories: &Array) -> Result<Vec<Self>> {
        let rows = convolutions.dim(0);
        let convolutions = split_equal(convolutions, rows, 0)?;
        let memories = split_equal(memories, rows, 0)?;
        let states = convolutions.into_iter().zip(memories);
        let states = states.map(|(convolution, memory)| Self { convolution, memory });
        Ok(states.collect())
    }
}

/// The kernels for layers of certain dimensions and a float type.
#[derive(Debug)]
pub struct GatedDeltaKernels {
    dimensions: Dimensions,
    float: Dtype,
    /// For one row, and for several.
    one: Step,
    several: Step,
    gate: Kernel,
}

#[derive(Debug)]
struct Step {
    most_rows: usize,
    inputs: Kernel,
    rule: Kernel,
}

impl GatedDeltaKernels {
    /// `None` where there is no GPU, or they are not for such layers. Compiled when they are first
    /// run.
    pub fn new(backend: Backend, dimensions: Dimensions, float: Dtype) -> Result<Option<Self>> {
        if !dimensions.suit() {
            return Ok(None);
        }
        let make = |name: &str, inputs: &[&str], outputs: &[&str], header: &str, text: &str| {
            let source = Source {
                name,
                inputs,
                outputs,
                constants: &dimensions.constants(),
                header,
                text,
            };
            Kernel::new(backend, float, &source)
        };
        let step = |most_rows: usize| -> Result<Option<Step>> {
            let (before, after) = (names("before", most_rows), names("after", most_rows));
            let header = format!("{}{}", choice("before", most_rows), choice("after", most_rows));
            let kernel = |name: &str, inputs: &[&'static str], outputs: &[&'static str], text: &str| {
                let name = format!("gated_delta_{name}_{most_rows}");
                let inputs: Vec<&str> = inputs
                    .iter()
                    .copied()
                    .chain(before.iter().map(String::as_str))
                    .collect();
                let outputs: Vec<&str> = outputs
                    .iter()
                    .copied()
                    .chain(after.iter().map(String::as_str))
                    .collect();
                make(&name, &inputs, &outputs, &header, text)
            };
            let inputs = kernel(
                "inputs",
                &["mixed", "strength", "decay", "convolution", "decay_bias", "rate"],
                &["queries", "keys", "values", "fading", "writing"],
                include_str!("gated_delta/inputs.kernel"),
            )?;
            let rule = kernel(
                "rule",
                &["queries", "keys", "values", "fading", "writing"],
                &["said"],
                include_str!("gated_delta/rule.kernel"),
            )?;
            Ok(inputs.zip(rule).map(|(inputs, rule)| Step {
                most_rows,
                inputs,
                rule,
            }))
        };
        let gate = make(
            "gated_delta_gate",
            &["said", "gate", "weight", "eps"],
            &["gated"],
            "",
            include_str!("gated_delta/gate.kernel"),
        )?;
        let (Some(one), Some(several), Some(gate)) = (step(1)?, step(MOST_ROWS)?, gate) else {
            return Ok(None);
        };
        Ok(Some(Self {
            dimensions,
            float,
            one,
            several,
            gate,
        }))
    }

    /// What the tokens read, `[rows, tokens, value_heads, value_dim]`, and the rows' states after
    /// them. Lazy.
    pub fn step(
        &self,
        constants: &Constants<'_>,
        tokens: &Tokens<'_>,
        before: &[State],
    ) -> Result<(Array, Vec<State>)> {
        self.check(constants, tokens, before)?;
        let mut said = Vec::new();
        let mut after = Vec::with_capacity(before.len());
        let mut start = 0;
        for states in before.chunks(MOST_ROWS) {
            let end = start + i32::try_from(states.len()).unwrap_or(i32::MAX);
            let of = |array: &Array| match states.len() == before.len() {
                true => Ok(array.clone()),
                false => array.try_index((start..end, .., ..)),
            };
            let tokens = Tokens {
                mixed: &of(tokens.mixed)?,
                strength: &of(tokens.strength)?,
                decay: &of(tokens.decay)?,
            };
            let step = match states {
                [_] => &self.one,
                _ => &self.several,
            };
            said.push(self.step_of(step, constants, &tokens, states, &mut after)?);
            start = end;
        }
        let said = match &said[..] {
            [one] => one.clone(),
            several => concatenate(several, 0)?,
        };
        Ok((said, after))
    }

    fn check(&self, constants: &Constants<'_>, tokens: &Tokens<'_>, before: &[State]) -> Result<()> {
        let Dimensions {
            key_dim,
            value_heads,
            value_dim,
            width,
            ..
        } = self.dimensions;
        let channels = self.dimensions.channels();
        let (rows, count) = (tokens.mixed.dim(0), tokens.mixed.dim(1));
        let each = [rows, count, value_heads];
        let fits = tokens.mixed.shape() == [rows, count, channels]
            && tokens.strength.shape() == each
            && tokens.decay.shape() == each
            && constants.convolution.shape() == [channels, width, 1]
            && constants.decay_bias.shape() == [value_heads]
            && constants.rate.shape() == [value_heads]
            && usize::try_from(rows) == Ok(before.len())
            && rows > 0
            && count > 0
            && rows
                .checked_mul(count)
                .and_then(|all| all.checked_mul(channels))
                .is_some()
            && before.iter().all(|state| {
                state.convolution.shape() == [1, width - 1, channels]
                    && state.memory.shape() == [1, value_heads, value_dim, key_dim]
                    && state.memory.dtype() == Dtype::Float32
            });
        if fits {
            Ok(())
        } else {
            Err(Exception::custom(
                "a gated delta layer of other dimensions than its kernels",
            ))
        }
    }

    /// Of as many rows as one launch takes; pushes their states.
    fn step_of(
        &self,
        step: &Step,
        constants: &Constants<'_>,
        tokens: &Tokens<'_>,
        before: &[State],
        after: &mut Vec<State>,
    ) -> Result<Array> {
        let Dimensions {
            key_heads,
            key_dim,
            value_heads,
            value_dim,
            ..
        } = self.dimensions;
        let (rows, count) = (tokens.mixed.dim(0), tokens.mixed.dim(1));
        let keys = (vec![rows, count, key_heads, key_dim], self.float);
        let values = (vec![rows, count, value_heads, value_dim], self.float);
        let each = (vec![rows, count, value_heads], Dtype::Float32);
        // Rows that are not there have the last one's state, which nobody reads for them, and write
        // nothing.
        let read = before.iter().chain(before.last().into_iter().cycle());
        let read: Vec<&State> = read.take(step.most_rows).collect();
        let mut inputs = vec![
            tokens.mixed,
            tokens.strength,
            tokens.decay,
            constants.convolution,
            constants.decay_bias,
            constants.rate,
        ];
        inputs.extend(read.iter().map(|state| &state.convolution));
        let mut outputs = vec![keys.clone(), keys, values.clone(), each.clone(), each];
        for place in 0..step.most_rows {
            let shape = before
                .get(place)
                .map_or(vec![1], |state| state.convolution.shape().to_vec());
            outputs.push((shape, self.float));
        }
        let launch = Launch {
            places: rows * count,
            lines: 2 * key_heads + value_heads + 1,
            outputs,
        };
        // SAFETY: `check` compared all shapes with the constants that the text was compiled with; it reads and writes by
        // them and by `mixed`'s shape. Each place and line writes its own vector, each row's first
        // place its convolution.
        let mut heard = unsafe { step.inputs.run(&inputs, &launch)? };
        let convolutions = heard.split_off(5);

        let mut inputs: Vec<&Array> = heard.iter().collect();
        inputs.extend(read.iter().map(|state| &state.memory));
        let mut outputs = vec![values];
        for place in 0..step.most_rows {
            let shape = before
                .get(place)
                .map_or(vec![1], |state| state.memory.shape().to_vec());
            outputs.push((shape, Dtype::Float32));
        }
        let launch = Launch {
            places: rows * value_heads,
            lines: value_dim,
            outputs,
        };
        // SAFETY: as above; `heard` has the shapes that were asked for. Each place and line writes its own line of a memory,
        // and its first thread what it reads.
        let mut written = unsafe { step.rule.run(&inputs, &launch)? };
        let memories = written.split_off(1);
        let states = convolutions.into_iter().zip(memories);
        after.extend(states.map(|(convolution, memory)| State { convolution, memory }));
        written
            .pop()
            .ok_or_else(|| Exception::custom("a kernel that wrote nothing"))
    }

    /// What was read, `[rows, tokens, value_heads, value_dim]`, normalised by head and times the
    /// gate, of the same shape, through SiLU. `weight` is `[value_dim]`, `eps` one number in
    /// float32. Lazy.
    pub fn gate(&self, said: &Array, gate: &Array, weight: &Array, eps: &Array) -> Result<Array> {
        let Dimensions {
            value_heads,
            value_dim,
            ..
        } = self.dimensions;
        let &[rows, count, heads, dim] = said.shape() else {
            return Err(Exception::custom("what is read has four dimensions"));
        };
        let fits = gate.shape() == said.shape()
            && (heads, dim) == (value_heads, value_dim)
            && weight.shape() == [value_dim]
            && eps.shape() == [1];
        if !fits {
            return Err(Exception::custom("a gate of other dimensions than its kernel"));
        }
        let launch = Launch {
            places: rows * count,
            lines: value_heads,
            outputs: vec![(said.shape().to_vec(), self.float)],
        };
        // SAFETY: all shapes were compared with the constants that the text was compiled with. Each place and line writes its
        // own vector.
        let mut gated = unsafe { self.gate.run(&[said, gate, weight, eps], &launch)? };
        gated
            .pop()
            .ok_or_else(|| Exception::custom("a kernel that wrote nothing"))
    }
}

fn names(of: &str, rows: usize) -> Vec<String> {
    (0..rows).map(|row| format!("{of}_{row}")).collect()
}

/// A macro that says which of the names is a row's.
fn choice(of: &str, rows: usize) -> String {
    let mut choice = format!("{of}_{}", rows - 1);
    for row in (0..rows - 1).rev() {
        choice = format!("(row) == {row} ? {of}_{row} : {choice}");
    }
    format!("#define {of}_of(row) ({choice})\n")
}
