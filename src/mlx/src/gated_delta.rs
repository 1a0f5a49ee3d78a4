//! Gated delta rule (Gated DeltaNet, arXiv:2412.06464) in three GPU kernels. MLX needs about forty
//! operations per layer and token. Sums are computed in float32 and only outputs are rounded to the
//! model's type. The results equal those of MLX's operations up to rounding, and do not depend on
//! how the tokens are divided into calls.
#![expect(unsafe_code, reason = "runs kernels after checks of all shapes")]

use mlx_rs::error::{Exception, Result};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{concatenate, split_equal};
use mlx_rs::{Array, Dtype};

use super::backend::Backend;
use super::kernel::{Kernel, LANES, Launch, Source};

/// Maximum number of rows per launch. A launch binds one state buffer per row, used or not.
const MAX_ROWS: usize = 8;

/// Dimensions of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dimensions {
    pub key_heads: i32,
    pub key_dim: i32,
    pub value_heads: i32,
    pub value_dim: i32,
    /// Tokens in the window of the convolution.
    pub width: i32,
}

impl Dimensions {
    /// Returns the number of channels of queries, keys and values together.
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

    /// Returns true if the kernels support these dimensions: the threads divide each vector evenly
    /// and hold few elements each.
    fn are_supported(&self) -> bool {
        let vector = |dim: i32| dim > 0 && dim % LANES == 0 && dim <= 8 * LANES;
        vector(self.key_dim)
            && vector(self.value_dim)
            && self.key_heads > 0
            && self.value_heads > 0
            && self.value_heads % self.key_heads == 0
            && self.width > 1
    }
}

/// Weights of a layer that the kernels read.
#[derive(Debug)]
pub struct Constants<'a> {
    /// `[channels, width, 1]`.
    pub convolution: &'a Array,
    /// `[value_heads]`.
    pub decay_bias: &'a Array,
    /// −exp of the logarithm of each head's decay rate, `[value_heads]` in float32.
    pub rate: &'a Array,
}

/// Outputs of a layer's projections.
#[derive(Debug)]
pub struct Tokens<'a> {
    /// Queries, keys and values, `[rows, tokens, channels]`.
    pub mixed: &'a Array,
    /// `[rows, tokens, value_heads]`.
    pub strength: &'a Array,
    /// `[rows, tokens, value_heads]`.
    pub decay: &'a Array,
}

/// State of one sequence in one layer.
#[derive(Debug, Clone)]
pub struct State {
    /// Last `width - 1` inputs of the convolution, `[1, width - 1, channels]`.
    pub convolution: Array,
    /// `[1, value_heads, value_dim, key_dim]`, float32.
    pub memory: Array,
}

impl State {
    /// Splits the states of rows that were computed together.
    pub fn split(convolutions: &Array, memories: &Array) -> Result<Vec<Self>> {
        let rows = convolutions.dim(0);
        let convolutions = split_equal(convolutions, rows, 0)?;
        let memories = split_equal(memories, rows, 0)?;
        let states = convolutions.into_iter().zip(memories);
        let states = states.map(|(convolution, memory)| Self { convolution, memory });
        Ok(states.collect())
    }
}

/// Kernels for layers of certain dimensions and a float type.
#[derive(Debug)]
pub struct GatedDeltaKernels {
    dimensions: Dimensions,
    float: Dtype,
    /// Kernels for a single row.
    one: Step,
    /// Kernels for up to [`MAX_ROWS`] rows.
    several: Step,
    gate: Kernel,
}

#[derive(Debug)]
struct Step {
    max_rows: usize,
    inputs: Kernel,
    rule: Kernel,
}

impl GatedDeltaKernels {
    /// Returns `None` without a GPU, or if the kernels do not support the dimensions. MLX compiles
    /// the kernels on their first run.
    pub fn new(backend: Backend, dimensions: Dimensions, float: Dtype) -> Result<Option<Self>> {
        if !dimensions.are_supported() {
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
        let step = |max_rows: usize| -> Result<Option<Step>> {
            let (before, after) = (names("before", max_rows), names("after", max_rows));
            let header = format!(
                "{}{}",
                row_selector("before", max_rows),
                row_selector("after", max_rows)
            );
            let kernel = |name: &str, inputs: &[&'static str], outputs: &[&'static str], text: &str| {
                let name = format!("gated_delta_{name}_{max_rows}");
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
                &["queries", "keys", "values", "alpha", "beta"],
                include_str!("gated_delta/inputs.kernel"),
            )?;
            let rule = kernel(
                "rule",
                &["queries", "keys", "values", "alpha", "beta"],
                &["attended"],
                include_str!("gated_delta/rule.kernel"),
            )?;
            Ok(inputs.zip(rule).map(|(inputs, rule)| Step {
                max_rows,
                inputs,
                rule,
            }))
        };
        let gate = make(
            "gated_delta_gate",
            &["attended", "gate", "weight", "eps"],
            &["gated"],
            "",
            include_str!("gated_delta/gate.kernel"),
        )?;
        let (Some(one), Some(several), Some(gate)) = (step(1)?, step(MAX_ROWS)?, gate) else {
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

    /// Returns the attention outputs, `[rows, tokens, value_heads, value_dim]`, and the states of
    /// the rows after the tokens. Lazy.
    pub fn step(
        &self,
        constants: &Constants<'_>,
        tokens: &Tokens<'_>,
        before: &[State],
    ) -> Result<(Array, Vec<State>)> {
        self.check(constants, tokens, before)?;
        let mut attended = Vec::new();
        let mut after = Vec::with_capacity(before.len());
        let mut start = 0;
        for states in before.chunks(MAX_ROWS) {
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
            attended.push(self.launch_step(step, constants, &tokens, states, &mut after)?);
            start = end;
        }
        let attended = match &attended[..] {
            [one] => one.clone(),
            several => concatenate(several, 0)?,
        };
        Ok((attended, after))
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
                "the inputs of a gated delta layer do not match the dimensions of its kernels",
            ))
        }
    }

    /// Runs the kernels for the rows of one launch and appends their states to `after`.
    fn launch_step(
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
        // Unused rows of the launch read the state of the last row and write nothing.
        let read = before.iter().chain(before.last().into_iter().cycle());
        let read: Vec<&State> = read.take(step.max_rows).collect();
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
        for place in 0..step.max_rows {
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
        // SAFETY: `check` compared all shapes with the constants that the kernel was compiled with.
        // The kernel indexes by them and by the shape of `mixed`. Each place and line writes its
        // own vector; the first place of each row writes its convolution state.
        let mut projected = unsafe { step.inputs.run(&inputs, &launch)? };
        let convolutions = projected.split_off(5);

        let mut inputs: Vec<&Array> = projected.iter().collect();
        inputs.extend(read.iter().map(|state| &state.memory));
        let mut outputs = vec![values];
        for place in 0..step.max_rows {
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
        // SAFETY: as above; `projected` has the requested shapes. Each place and line writes its
        // own line of a memory, and its first thread writes the output.
        let mut written = unsafe { step.rule.run(&inputs, &launch)? };
        let memories = written.split_off(1);
        let states = convolutions.into_iter().zip(memories);
        after.extend(states.map(|(convolution, memory)| State { convolution, memory }));
        written
            .pop()
            .ok_or_else(|| Exception::custom("a kernel returned no output"))
    }

    /// Normalises the attention outputs, `[rows, tokens, value_heads, value_dim]`, by head and
    /// multiplies them by SiLU of `gate`, which has the same shape. `weight` is `[value_dim]`,
    /// `eps` one float32 value. Lazy.
    pub fn gate(&self, attended: &Array, gate: &Array, weight: &Array, eps: &Array) -> Result<Array> {
        let Dimensions {
            value_heads,
            value_dim,
            ..
        } = self.dimensions;
        let &[rows, count, heads, dim] = attended.shape() else {
            return Err(Exception::custom("attention outputs must have four dimensions"));
        };
        let fits = gate.shape() == attended.shape()
            && (heads, dim) == (value_heads, value_dim)
            && weight.shape() == [value_dim]
            && eps.shape() == [1];
        if !fits {
            return Err(Exception::custom(
                "the gate's inputs do not match the dimensions of its kernel",
            ));
        }
        let launch = Launch {
            places: rows * count,
            lines: value_heads,
            outputs: vec![(attended.shape().to_vec(), self.float)],
        };
        // SAFETY: all shapes were compared with the constants that the kernel was compiled with.
        // Each place and line writes its own vector.
        let mut gated = unsafe { self.gate.run(&[attended, gate, weight, eps], &launch)? };
        gated
            .pop()
            .ok_or_else(|| Exception::custom("a kernel returned no output"))
    }
}

fn names(prefix: &str, rows: usize) -> Vec<String> {
    (0..rows).map(|row| format!("{prefix}_{row}")).collect()
}

/// Returns the definition of a macro that selects the buffer of a row.
fn row_selector(prefix: &str, rows: usize) -> String {
    let mut row_selector = format!("{prefix}_{}", rows - 1);
    for row in (0..rows - 1).rev() {
        row_selector = format!("(row) == {row} ? {prefix}_{row} : {row_selector}");
    }
    format!("#define {prefix}_of(row) ({row_selector})\n")
}
