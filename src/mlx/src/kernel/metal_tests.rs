//! Compiles the Metal texts of all kernels without a Mac. Each run of a kernel is recorded as the
//! function that MLX 0.32 generates for it (`mlx/backend/metal/custom_kernel.cpp`), and libclang
//! compiles the function with Metal's address spaces (`metal.h`). This finds syntax errors, wrong
//! types and mixed address spaces. It does not show that the results are correct.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use mlx_rs::error::Result;
use mlx_rs::ops::zeros_dtype;
use mlx_rs::{Array, Dtype};

use super::{Kernel, Launch, METAL_HEADER, METAL_PLACE, Source};
use crate::backend::Backend;
use crate::exclusive;
use crate::gate::GateKernel;
use crate::gated_delta::{Constants, Dimensions, GatedDeltaKernels, State, Tokens};
use crate::kernel_cases::{ACTIVATIONS, FLOATS, GATE_SHAPES, GATED_DELTA_DIMENSIONS, GATED_DELTA_SIZES};
use crate::load::dtype;
use rooflet_model::config::Activation;
use rooflet_testing::TempDir;

/// MLX passes inputs with fewer elements in Metal's constant address space.
const DEVICE_ELEMENTS: usize = 8;
/// Buffers that Metal can bind for one function.
const MAX_BUFFERS: usize = 31;

thread_local! {
    static RECORDED: RefCell<Option<Vec<Function>>> = const { RefCell::new(None) };
}

/// Returns true if this thread records Metal kernels instead of running them.
pub(super) fn is_recording() -> bool {
    RECORDED.with_borrow(Option::is_some)
}

/// Runs `work`, and returns the functions of the kernels that it ran.
fn record(work: impl FnOnce() -> Result<()>) -> Vec<Function> {
    RECORDED.set(Some(Vec::new()));
    work().unwrap();
    RECORDED.take().unwrap_or_default()
}

/// Metal function of one run.
#[derive(Debug, Clone)]
struct Function {
    name: String,
    float: Dtype,
    /// Names of the inputs, with the address space of each.
    inputs: Vec<(String, &'static str)>,
    /// Name of the first output.
    output: String,
    buffers: usize,
    text: String,
}

impl Function {
    /// Returns the function with a statement at the beginning of its body.
    fn with(&self, statement: &str) -> Self {
        let (head, body) = self.text.split_once(METAL_PLACE).unwrap();
        Self {
            text: format!("{head}{METAL_PLACE}{statement}\n{body}"),
            ..self.clone()
        }
    }
}

/// Source of a recorded kernel.
#[derive(Debug)]
pub(super) struct Text {
    name: String,
    inputs: Vec<String>,
    outputs: Vec<String>,
    header: String,
    body: String,
}

impl Text {
    pub(super) fn new(source: &Source<'_>) -> Self {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Self {
            name: source.name.to_owned(),
            inputs: owned(source.inputs),
            outputs: owned(source.outputs),
            header: format!("{METAL_HEADER}{}", source.header),
            body: format!("{METAL_PLACE}{}", source.text),
        }
    }

    /// Records the function. Returns zeros of the requested shapes.
    pub(super) fn run(&self, kernel: &Kernel, inputs: &[&Array], launch: &Launch) -> Result<Vec<Array>> {
        let function = self.function(kernel, inputs, launch);
        RECORDED.with_borrow_mut(|recorded| recorded.get_or_insert_default().push(function));
        let outputs = launch.outputs.iter();
        outputs.map(|(shape, dtype)| zeros_dtype(shape, *dtype)).collect()
    }

    fn function(&self, kernel: &Kernel, inputs: &[&Array], launch: &Launch) -> Function {
        assert_eq!(inputs.len(), self.inputs.len(), "inputs of {}", self.name);
        let mut parameters = Vec::new();
        let mut spaces = Vec::new();
        for (name, input) in self.inputs.iter().zip(inputs) {
            let space = match input.size() < DEVICE_ELEMENTS {
                true => "constant",
                false => "device",
            };
            spaces.push((name.clone(), space));
            let reference = if input.ndim() == 0 { "&" } else { "*" };
            parameters.push(format!(
                "const {space} {}{reference} {name}",
                type_name(input.dtype())
            ));
            for (suffix, kind) in [
                ("shape", "const constant int*"),
                ("strides", "const constant long*"),
                ("ndim", "const constant int&"),
            ] {
                let parameter = format!("{name}_{suffix}");
                if self.body.contains(&parameter) {
                    parameters.push(format!("{kind} {parameter}"));
                }
            }
        }
        for (name, (_, dtype)) in self.outputs.iter().zip(&launch.outputs) {
            parameters.push(format!("device {}* {name}", type_name(*dtype)));
        }
        let buffers = parameters.len();
        for attribute in ["thread_position_in_grid", "thread_position_in_threadgroup"] {
            if self.body.contains(attribute) {
                parameters.push(format!("uint3 {attribute}"));
            }
        }
        let name = format!("custom_kernel_{}", self.name);
        let constants = kernel.constants.iter();
        let constants: Vec<_> = constants
            .map(|(name, value)| (name.to_str().unwrap(), value))
            .collect();
        let mut declared = "typename Float".to_owned();
        let mut arguments = type_name(kernel.float).to_owned();
        for (name, value) in constants {
            write!(declared, ", int {name}").unwrap();
            write!(arguments, ", {value}").unwrap();
        }
        let text = format!(
            "{}\ntemplate <{declared}>\nvoid {name}(\n  {}) {{\n{}\n}}\ntemplate decltype({name}<{arguments}>) {name}<{arguments}>;\n",
            self.header,
            parameters.join(",\n  "),
            self.body
        );
        Function {
            name,
            float: kernel.float,
            inputs: spaces,
            output: self.outputs[0].clone(),
            buffers,
            text,
        }
    }
}

fn type_name(dtype: Dtype) -> &'static str {
    let types = [
        (Dtype::Float32, "float"),
        (Dtype::Float16, "float16_t"),
        (Dtype::Bfloat16, "bfloat16_t"),
    ];
    let name = types.iter().find(|(known, _)| *known == dtype);
    name.expect("kernels use floats only").1
}

/// Every kernel in each float type, with inputs in both address spaces.
fn all_functions() -> Vec<Function> {
    let mut functions = Vec::new();
    for float in FLOATS.map(dtype) {
        for activation in ACTIVATIONS {
            for shape in GATE_SHAPES {
                functions.extend(record(|| run_gate(activation, float, shape)));
            }
        }
        for dimensions in GATED_DELTA_DIMENSIONS {
            for (rows, tokens) in GATED_DELTA_SIZES {
                functions.extend(record(|| run_gated_delta(dimensions, float, rows, tokens)));
            }
        }
    }
    functions
}

fn run_gate(activation: Activation, float: Dtype, shape: &[i32]) -> Result<()> {
    let kernel = GateKernel::new(Backend::Metal, activation, float)?.unwrap();
    let input = zeros_dtype(shape, float)?;
    kernel.apply(&input, &input)?;
    Ok(())
}

fn run_gated_delta(dimensions: Dimensions, float: Dtype, rows: i32, tokens: i32) -> Result<()> {
    let Dimensions {
        key_dim,
        value_heads,
        value_dim,
        width,
        ..
    } = dimensions;
    let channels = dimensions.channels();
    let kernels = GatedDeltaKernels::new(Backend::Metal, dimensions, float)?.unwrap();
    let zeros = |shape: &[i32]| zeros_dtype(shape, float);
    let each = zeros(&[rows, tokens, value_heads])?;
    let state = State {
        convolution: zeros(&[1, width - 1, channels])?,
        memory: zeros_dtype(&[1, value_heads, value_dim, key_dim], Dtype::Float32)?,
    };
    let before = vec![state; usize::try_from(rows).unwrap()];
    let (attended, _) = kernels.step(
        &Constants {
            convolution: &zeros(&[channels, width, 1])?,
            decay_bias: &zeros(&[value_heads])?,
            rate: &zeros_dtype(&[value_heads], Dtype::Float32)?,
        },
        &Tokens {
            mixed: &zeros(&[rows, tokens, channels])?,
            strength: &each,
            decay: &each,
        },
        &before,
    )?;
    let eps = zeros_dtype(&[1], Dtype::Float32)?;
    kernels.gate(&attended, &attended, &zeros(&[value_dim])?, &eps)?;
    Ok(())
}

/// Compiles the functions. Returns the diagnostics of each, by its index.
fn diagnostics(functions: &[Function]) -> HashMap<usize, Vec<String>> {
    let libclang = std::env::var("ROOFLET_LIBCLANG").expect(
        "ROOFLET_LIBCLANG must name the directory of libclang's Python package: \
         run `cargo xtask test --only macos`",
    );
    let dir = TempDir::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../xtask/libclang/diagnostics.py");
    let mut command = Command::new("python3");
    command.arg(script).env("PYTHONPATH", libclang);
    for (index, function) in functions.iter().enumerate() {
        let path = dir.path().join(format!("{index}.cpp"));
        fs::write(&path, format!("{}{}", include_str!("metal.h"), function.text)).unwrap();
        command.arg(path);
    }
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let mut found: HashMap<usize, Vec<String>> = HashMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let (path, diagnostic) = line.split_once('\t').unwrap();
        let index = path.rsplit('/').next().unwrap().trim_end_matches(".cpp");
        found
            .entry(index.parse().unwrap())
            .or_default()
            .push(diagnostic.to_owned());
    }
    found
}

/// Names of all kernels that the engine runs.
const KERNELS: [&str; 8] = [
    "gate_silu",
    "gate_gelu",
    "gate_clamped_silu",
    "gated_delta_inputs_1",
    "gated_delta_inputs_8",
    "gated_delta_rule_1",
    "gated_delta_rule_8",
    "gated_delta_gate",
];

/// Inputs with few elements for few tokens or heads: MLX passes them in either address space.
const SMALL_INPUTS: [&str; 8] = [
    "gate",
    "up",
    "strength",
    "decay",
    "decay_bias",
    "rate",
    "alpha",
    "beta",
];

#[test]
fn every_kernel_is_compiled_in_each_float_type_and_address_space() {
    let _mlx = exclusive();
    let functions = all_functions();
    for name in KERNELS {
        for float in FLOATS.map(dtype) {
            let name = format!("custom_kernel_{name}");
            let inputs: BTreeSet<_> = functions
                .iter()
                .filter(|function| function.name == name && function.float == float)
                .flat_map(|function| function.inputs.clone())
                .collect();
            assert!(!inputs.is_empty(), "{name} in {float:?}");
            for (input, _) in &inputs {
                // A gated delta layer gates many values per token.
                let is_small =
                    SMALL_INPUTS.contains(&input.as_str()) && name != "custom_kernel_gated_delta_gate";
                let spaces = inputs.iter().filter(|(other, _)| other == input).count();
                assert_eq!(
                    spaces,
                    1 + usize::from(is_small),
                    "{input} of {name} in {float:?}"
                );
            }
        }
    }
    let is_listed = |function: &Function| KERNELS.iter().any(|name| function.name.ends_with(name));
    assert!(functions.iter().all(is_listed), "a kernel is missing in KERNELS");
}

#[test]
fn no_kernel_binds_more_buffers_than_metal_allows() {
    let _mlx = exclusive();
    let functions = all_functions();
    for name in KERNELS {
        let name = format!("custom_kernel_{name}");
        let most = functions.iter().filter(|function| function.name == name);
        let most = most.map(|function| function.buffers).max();
        assert!(most.is_some_and(|most| most <= MAX_BUFFERS), "{name}: {most:?}");
    }
}

#[test]
#[ignore = "needs libclang: cargo xtask test --only macos"]
fn metal_compiler_accepts_every_kernel() {
    let _mlx = exclusive();
    let functions = all_functions();
    let found = diagnostics(&functions);
    let found = found.iter().map(|(index, found)| {
        let Function { name, text, .. } = &functions[*index];
        format!("{name}: {}\n{text}", found.join("\n"))
    });
    let first: Vec<_> = found.take(1).collect();
    assert!(first.is_empty(), "{}", first.concat());
}

#[test]
#[ignore = "needs libclang: cargo xtask test --only macos"]
fn metal_compiler_rejects_broken_kernels() {
    let _mlx = exclusive();
    let functions = all_functions();
    let rule = functions
        .iter()
        .find(|function| function.name == "custom_kernel_gated_delta_rule_8")
        .unwrap();
    let broken = [
        ("const device float* before_3", "const constant float* before_3"),
        ("const auto before =", "const float* before ="),
        ("simd_sum", "simd_total"),
        ("float recalled", "half recalled"),
        ("attended[at", "values[at"),
    ];
    let functions = broken.map(|(from, to)| {
        assert!(rule.text.contains(from), "{from}");
        Function {
            text: rule.text.replace(from, to),
            ..rule.clone()
        }
    });
    let found = diagnostics(&functions);
    for (index, (_, to)) in broken.iter().enumerate() {
        assert!(found.contains_key(&index), "accepted with `{to}`");
    }
}

/// Functions that differ in name, type or address spaces, as the compiler sees them.
fn distinct(functions: Vec<Function>) -> Vec<Function> {
    let mut seen = HashSet::new();
    let distinct = functions.into_iter().filter(|function| {
        let inputs = function.inputs.iter().map(|(_, space)| *space);
        seen.insert((
            function.name.clone(),
            format!("{:?}", function.float),
            inputs.collect::<String>(),
        ))
    });
    distinct.collect()
}

/// Faults in each function of each float type, so that no function passes unseen.
#[test]
#[ignore = "needs libclang: cargo xtask test --only macos"]
fn metal_compiler_rejects_a_fault_in_each_function() {
    let _mlx = exclusive();
    let functions = distinct(all_functions());
    let mut broken = Vec::new();
    for function in &functions {
        let Function { inputs, output, .. } = function;
        let (input, space) = &inputs[0];
        let other = match *space {
            "constant" => "device",
            _ => "constant",
        };
        broken.extend([
            function.with(&format!("const Float* generic = {input}; (void)generic;")),
            function.with(&format!("const {other} Float* moved = {input}; (void)moved;")),
            function.with(&format!("{output}[0] = no_such_function({input}[0]);")),
            function.with(&format!("const Float value = {input}; (void)value;")),
            function.with(&format!("{input}[0] = 0;")),
        ]);
    }
    let found = diagnostics(&broken);
    for (index, function) in broken.iter().enumerate() {
        assert!(
            found.contains_key(&index),
            "accepted {} in {:?}:\n{}",
            function.name,
            function.float,
            function.text
        );
    }
}
