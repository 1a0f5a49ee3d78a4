//! Checks of a claim's description of chip and model: bandwidth, memory sizes, layers, heads,
//! parameters.

use super::cell::{Cell, SizeSource};
use super::facts::{GIB_PER_GB, parameters, weights};
use super::field::{read, read_memory};
use super::limits::gigabytes;
use super::machine::{Bin, ChipIdentification, default_working_set, gigabytes_per_second, sizes};
use super::model::KnownModel;
use super::stated::Measure;
use super::{Flag, InvalidClaim, Report};
use rooflet_api::v1alpha1::{ClaimVerdict, ClaimedFigure, FigureKind, PerformanceClaimSpec};
use rooflet_model::dimensions::{Attention, FeedForward, ModelDimensions};

/// Checks the description of machine and model.
pub(super) fn check_description(
    spec: &PerformanceClaimSpec,
    claim: &Cell,
    report: &mut Report,
) -> Result<(), InvalidClaim> {
    hardware(spec, claim, report)?;
    if let Some((model, SizeSource::Dimensions)) = &claim.model.known
        && let Some(dimensions) = &model.dimensions
    {
        report.open(
            "model",
            format!("model {}", claim.model.name.as_deref().unwrap_or(&model.name)),
        );
        dimension_facts(spec, model, dimensions, report)?;
        if let (Some(size), Some((_, _, format))) = (&claim.model.file_size, claim.model.sized()) {
            let stated = spec
                .model
                .file_size
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default();
            report.open("model.fileSize", format!("model.fileSize = {stated}"));
            weights(
                "model.fileSize",
                &stated,
                size,
                FigureKind::FileBytes,
                model,
                format,
                report,
            );
        }
    } else if let Some(name) = &claim.model.name {
        report.open("model", format!("model {name}"));
        match &claim.model.known {
            Some((known, _)) => report.remark(
                "model",
                format!(
                    "unknown model: assuming {:.1} billion parameters",
                    known.parameters / 1e9
                ),
            ),
            None => report.remark("model", "unknown model; state model.parameters or model.shape"),
        }
    }
    Ok(())
}

fn hardware(spec: &PerformanceClaimSpec, claim: &Cell, report: &mut Report) -> Result<(), InvalidClaim> {
    let machine = &claim.machine;
    if let Some(chip) = &spec.hardware.chip {
        report.open("hardware.chip", format!("hardware.chip = {chip}"));
        match machine.naming {
            ChipIdentification::Named => {
                let bins: Vec<String> = machine.bins.iter().map(Bin::shown).collect();
                report.pass("hardware.chip", bins.join(" or "));
            }
            ChipIdentification::Ambiguous => report.remark(
                "hardware.chip",
                "matches several chips: checked against the fastest of them",
            ),
            ChipIdentification::Missing => {
                report.remark("hardware.chip", "names no chip: checked against the fastest chip")
            }
            ChipIdentification::Unsupported => {
                report.remark("hardware.chip", "unknown chip, or not made by Apple")
            }
            ChipIdentification::Nonexistent => {}
        }
    }
    for fault in &machine.faults {
        let claimed = match fault.field {
            "hardware.gpuCores" => spec.hardware.gpu_cores.map(|cores| cores.to_string()),
            "hardware.memory" => spec.hardware.memory.as_ref().map(ToString::to_string),
            _ => spec.hardware.chip.clone(),
        };
        let claimed = claimed.unwrap_or_default();
        report.open(fault.field, format!("{} = {claimed}", fault.field));
        let mut flag = Flag::new(ClaimVerdict::WrongFact, fault.message.clone());
        flag.claimed = Some(claimed);
        flag.right = Some(fault.right.clone());
        report.flag(fault.field, flag);
    }
    let field = "hardware.bandwidth";
    if let (Some(published), Some(stated)) = (
        &spec.hardware.bandwidth,
        read(spec.hardware.bandwidth.as_ref(), Measure::Bandwidth, field)?,
    ) {
        report.open(field, format!("{field} = {published}"));
        match machine.bandwidth_fault(&stated) {
            Some((message, right)) => report.flag(
                field,
                Flag::new(ClaimVerdict::WrongFact, message)
                    .instead(published.to_string(), gigabytes_per_second(right), right / 1e9)
                    .factor(stated.value / right),
            ),
            None if machine.naming == ChipIdentification::Named => report.pass(field, "as in the data sheet"),
            None => report.remark(field, "not checked: the chip is unknown"),
        }
    }
    working_set(spec, claim, report)?;
    for (index, published) in spec.hardware.memory_options.iter().enumerate() {
        let field = format!("hardware.memoryOptions[{index}]");
        let Some(size) = read_memory(Some(published), &field)? else {
            continue;
        };
        report.open(&field, format!("{field} = {published}"));
        let has_size = |bin: &Bin| bin.memory_gib.contains(&(size.value.round() as u64));
        if machine.naming != ChipIdentification::Named {
            report.remark(&field, "not checked: the chip is unknown");
        } else if machine.bins.iter().any(has_size) {
            report.pass(&field, "available configuration");
        } else {
            let right = sizes(&machine.bins);
            let mut flag = Flag::new(
                ClaimVerdict::WrongFact,
                format!("that chip is sold with {right} GB, not with {published}"),
            );
            flag.claimed = Some(published.to_string());
            flag.right = Some(format!("{right} GB"));
            report.flag(&field, flag);
        }
    }
    Ok(())
}

/// Checks the memory under which one figure was measured against the sizes that the chip is sold
/// with.
pub(super) fn check_memory_of_figure(figure: &ClaimedFigure, cell: &Cell, report: &mut Report) {
    let Some(memory) = &figure.under.memory else {
        return;
    };
    let faults = cell.machine.faults.iter();
    for fault in faults.filter(|fault| fault.field == "hardware.memory") {
        let field = format!("{}.under.memory", cell.field);
        report.open(&field, format!("{field} = {memory}"));
        let mut flag = Flag::new(ClaimVerdict::WrongFact, fault.message.clone());
        flag.claimed = Some(memory.to_string());
        flag.right = Some(fault.right.clone());
        report.flag(&field, flag);
    }
}

fn working_set(spec: &PerformanceClaimSpec, claim: &Cell, report: &mut Report) -> Result<(), InvalidClaim> {
    let field = "hardware.workingSet";
    let (Some(published), Some(stated)) = (
        &spec.hardware.working_set,
        read(spec.hardware.working_set.as_ref(), Measure::Bytes, field)?,
    ) else {
        return Ok(());
    };
    report.open(field, format!("{field} = {published}"));
    let Some(memory) = claim.machine.memory else {
        report.remark(field, "not checked: the size of the memory is not stated");
        return Ok(());
    };
    let usual = default_working_set(memory);
    // 24 GB may mean 24 GiB. A sysctl can assign nearly all memory to the GPU, but never all of it.
    if stated.value >= 0.9 * memory {
        let message = format!(
            "the GPU cannot use all memory: by default, it may use about {:.1} GB ({:.1} GiB) of {:.0} GiB",
            usual / 1e9,
            usual / GIB_PER_GB / 1e9,
            memory / GIB_PER_GB / 1e9
        );
        report.flag(
            field,
            Flag::new(ClaimVerdict::WrongFact, message)
                .instead(published.to_string(), gigabytes(usual), usual / 1e9)
                .factor(stated.value / usual),
        );
    } else {
        report.pass(field, format!("by default about {}", gigabytes(usual)));
    }
    Ok(())
}

/// Numbers of layers, heads and experts of a model.
struct Counted {
    layers: u32,
    heads: Vec<u32>,
    kv_heads: Vec<u32>,
    head_dims: Vec<u32>,
    experts: u32,
    active_experts: u32,
}

impl Counted {
    fn new(dimensions: &ModelDimensions) -> Self {
        let mut counted = Self {
            layers: u32::try_from(dimensions.layers.len()).unwrap_or(u32::MAX),
            heads: Vec::new(),
            kv_heads: Vec::new(),
            head_dims: Vec::new(),
            experts: 0,
            active_experts: 0,
        };
        let add = |list: &mut Vec<u32>, value: u32| {
            if !list.contains(&value) {
                list.push(value);
            }
        };
        for layer in &dimensions.layers {
            match layer.attention {
                Attention::Grouped {
                    heads,
                    kv_heads,
                    head_dim,
                    ..
                } => {
                    add(&mut counted.heads, heads);
                    add(&mut counted.kv_heads, kv_heads);
                    add(&mut counted.head_dims, head_dim);
                }
                Attention::Latent {
                    heads,
                    nope_dim,
                    rope_dim,
                    value_dim,
                    ..
                } => {
                    add(&mut counted.heads, heads);
                    for dims in [value_dim, nope_dim, nope_dim + rope_dim] {
                        add(&mut counted.head_dims, dims);
                    }
                }
                Attention::GatedDelta { .. } => {}
            }
            if let FeedForward::Experts { experts, active, .. } = layer.feed_forward {
                counted.experts = experts;
                counted.active_experts = active;
            }
        }
        counted
    }
}

fn dimension_facts(
    spec: &PerformanceClaimSpec,
    model: &KnownModel,
    dimensions: &ModelDimensions,
    report: &mut Report,
) -> Result<(), InvalidClaim> {
    let counted = Counted::new(dimensions);
    let mut stated_any = false;
    let mut count = |name: &str, stated: Option<u32>, known: &[u32], hint: &str| {
        let Some(stated) = stated.filter(|_| !known.is_empty()) else {
            return;
        };
        stated_any = true;
        let field = format!("model.{name}");
        report.open(&field, format!("{field} = {stated}"));
        if known.contains(&stated) {
            report.pass(&field, "as in config.json");
            return;
        }
        let right = known.iter().map(u32::to_string).collect::<Vec<_>>().join(" or ");
        let message = format!("{} has {right}, not {stated}{hint}", model.name);
        report.flag(
            &field,
            Flag::new(ClaimVerdict::WrongFact, message)
                .instead(stated.to_string(), right, f64::from(known[0]))
                .factor(f64::from(stated) / f64::from(known[0].max(1))),
        );
    };
    let stated_model = &spec.model;
    count("layers", stated_model.layers, &[counted.layers], "");
    count("hiddenSize", stated_model.hidden_size, &[dimensions.hidden], "");
    count("heads", stated_model.heads, &counted.heads, "");
    let confused = stated_model
        .kv_heads
        .is_some_and(|heads| counted.heads.contains(&heads));
    let hint = if confused {
        ": those are the query heads"
    } else {
        ""
    };
    count("kvHeads", stated_model.kv_heads, &counted.kv_heads, hint);
    count("headDim", stated_model.head_dim, &counted.head_dims, "");
    count("experts", stated_model.experts, &[counted.experts], "");
    count(
        "activeExperts",
        stated_model.active_experts,
        &[counted.active_experts],
        "",
    );
    let active = dimensions.active_parameters() as f64;
    for (name, published, right) in [
        ("parameters", &stated_model.parameters, model.parameters),
        ("activeParameters", &stated_model.active_parameters, active),
    ] {
        let field = format!("model.{name}");
        let (Some(published), Some(stated)) = (published, read(published.as_ref(), Measure::Count, &field)?)
        else {
            continue;
        };
        stated_any = true;
        report.open(&field, format!("{field} = {published}"));
        parameters(&field, &published.to_string(), &stated, right, model, report);
    }
    if !stated_any {
        let experts = if counted.experts > 0 {
            format!(
                ", {} of {} experts per token: {:.2} billion active",
                counted.active_experts,
                counted.experts,
                active / 1e9
            )
        } else {
            String::new()
        };
        report.pass(
            "model",
            format!(
                "{}: {:.2} billion parameters, {} layers{experts}",
                model.name,
                model.parameters / 1e9,
                counted.layers
            ),
        );
    }
    Ok(())
}
