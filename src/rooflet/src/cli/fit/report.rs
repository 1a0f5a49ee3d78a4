//! Output of `rooflet fit`: plain text, table and JSON.

use serde_json::{Value, json};

use super::machine::ChosenMachine;
use super::model::NamedModel;
use rooflet_base::units::Bytes;
use rooflet_model::dimensions::{Attention, ModelDimensions};
use rooflet_model::facts::WeightsSource;
use rooflet_model::families;
use rooflet_model::kv_cache::KvBits;
use rooflet_roofline::predict::{Basis, Constraint, DecodePrediction, Hardware, Interval, Prediction};
use rooflet_roofline::sizing::{Fit, Machine, Obstacle, Service};

/// Returns the documented JSON output, one object per machine.
pub(super) fn json(fit: &Fit, model: &NamedModel, machine: &Machine) -> Value {
    let interval =
        |interval: Interval| json!({"p10": interval.p10, "p50": interval.p50, "p90": interval.p90});
    let prediction = fit.prediction.as_ref();
    let facts = &model.facts;
    json!({
        "admitted": fit.admitted(),
        "binding": fit.binding(),
        "memory": {
            "weightsBytes": fit.need.weights.0,
            "kvBytes": fit.need.kv.map(|kv| kv.0),
            "kvReservedBytes": fit.need.kv_reserved.map(|kv| kv.0),
            "activationBytes": fit.need.activations.0,
            "runtimeBytes": fit.need.runtime.0,
            "limitBytes": fit.limit.0,
            "basis": fit.memory_basis.as_str(),
        },
        "decode": prediction.map(|Prediction { decode, .. }| json!({
            "tokensPerSecond": interval(decode.tokens_per_second),
            "aggregateTokensPerSecond": interval(decode.aggregate_tokens_per_second),
            "bytesPerToken": decode.bytes_per_token,
            "basis": decode.basis.as_str(),
            "sustainedFactor": machine.hardware.and_then(Hardware::sustained),
        })),
        "prefill": prediction.map(|Prediction { prefill, .. }| json!({
            "tokensPerSecond": interval(prefill.tokens_per_second),
            "basis": prefill.basis.as_str(),
        })),
        "timeToFirstTokenSeconds": prediction.map(|Prediction { prefill, .. }| {
            let mut seconds = interval(prefill.first_token_seconds);
            seconds["basis"] = json!(prefill.basis.as_str());
            let others = fit.first_token_variants;
            seconds["prefixHit"] = json!(others.and_then(|others| others.prefix_hit).map(interval));
            seconds["coldLoad"] = json!(others.map(|others| {
                let mut cold = interval(others.cold_load);
                cold["basis"] = json!(others.cold_load_basis.as_str());
                cold
            }));
            seconds
        }),
        "maxContextTokens": fit.max_context_tokens,
        "maxConcurrency": fit.max_concurrency,
        "suggestions": fit.suggestions.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "model": {
            "name": model.name,
            "architecture": facts.model_type,
            "known": facts.dimensions.is_some(),
            "parameters": facts.parameters,
            "activeParameters": facts.dimensions.as_ref().map(ModelDimensions::active_parameters),
            "describedParameters": facts.parameter_mismatch(),
            "leftOutBytes": facts.left_out.0,
            "weightsFrom": source_word(&facts.source),
            "maxContextTokens": facts.max_context_tokens,
        },
        "machine": {
            "chip": machine.name,
            "gpuCores": gpu_cores(machine),
            "memoryBytes": machine.memory.0,
        },
    })
}

fn source_word(source: &WeightsSource) -> &'static str {
    match source {
        WeightsSource::Headers(_) => "Headers",
        WeightsSource::Index { .. } => "Index",
        WeightsSource::Config => "Estimate",
    }
}

fn gpu_cores(machine: &Machine) -> Option<u32> {
    machine.hardware?.chip().map(|chip| chip.gpu_cores)
}

/// Returns the output as plain text.
pub(super) fn text(fit: &Fit, model: &NamedModel, service: Service, chosen: &ChosenMachine) -> String {
    let machine = &chosen.machine;
    let mut out = format!("{} on {}\n\n", describe_model(model), describe_machine(machine));
    verdict(&mut out, fit, machine, model);
    memory(&mut out, fit, model, service);
    match &fit.prediction {
        Some(prediction) => speed(&mut out, prediction, service, fit, machine),
        None if model.facts.dimensions.is_some() => {
            out.push_str(
                "\nThe speed is unknown: this machine has not been measured. `--probe now` measures it.\n",
            );
        }
        None => {}
    }
    if let (Some(context), Some(most)) = (fit.max_context_tokens, fit.max_concurrency) {
        line(
            &mut out,
            &format!(
                "\nMaximum: a context of {context} tokens with {}, or {} of {} tokens.",
                streams(service.concurrency),
                streams(most),
                service.context_tokens
            ),
        );
        if model.facts.max_context_tokens.is_none() {
            line(
                &mut out,
                "Note: the model's maximum context is unknown here; only its config.json defines it. This is the limit of the \
                memory.",
            );
        }
    }
    if !fit.suggestions.is_empty() {
        out.push_str("\nEach of these changes would make it fit:\n");
        for suggestion in &fit.suggestions {
            line(&mut out, &format!("  - {suggestion}"));
        }
    }
    if let Some(described) = model.facts.parameter_mismatch() {
        line(
            &mut out,
            &format!(
                "\nNote: config.json describes {}, but the tensors contain {}: a file is missing, or one of the files belongs to \
                another model.",
                parameters(described),
                parameters(model.facts.parameters)
            ),
        );
    }
    for note in &chosen.notes {
        line(&mut out, &format!("\nNote: {note}."));
    }
    out
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

fn describe_model(model: &NamedModel) -> String {
    let facts = &model.facts;
    let mut words = vec![parameters(facts.parameters)];
    if facts.model_type != model.name {
        words.insert(0, facts.model_type.clone());
    }
    if let Some(dimensions) = &facts.dimensions
        && dimensions.expert_layers() > 0
    {
        words.push(format!(
            "{} of them active per token",
            billions(dimensions.active_parameters())
        ));
    }
    match model.format {
        Some(format) => words.push(format.to_string()),
        None => {
            words.push(facts.format.default.to_string());
            let exceptions = facts.format.exceptions();
            let listed: Vec<String> = exceptions
                .iter()
                .map(|(format, count)| format!("{count} matrices {format}"))
                .collect();
            if !listed.is_empty() {
                words.push(format!("but {}", listed.join(" and ")));
            }
        }
    }
    format!("{} ({})", model.name, words.join(", "))
}

fn parameters(count: u64) -> String {
    format!("{} parameters", billions(count))
}

fn billions(count: u64) -> String {
    if count >= 1_000_000_000 {
        format!("{:.2} billion", count as f64 / 1e9)
    } else {
        format!("{:.1} million", count as f64 / 1e6)
    }
}

fn streams(count: u32) -> String {
    match count {
        1 => "1 stream".to_owned(),
        _ => format!("{count} streams"),
    }
}

fn describe_machine(machine: &Machine) -> String {
    match machine.hardware {
        Some(Hardware::Chip(chip)) => format!("{chip}, {} of memory", machine.memory),
        Some(Hardware::Measured(_)) | None => format!("{}, {} of memory", machine.name, machine.memory),
    }
}

fn verdict(out: &mut String, fit: &Fit, machine: &Machine, model: &NamedModel) {
    let total = fit.need.total();
    let verdict = match fit.obstacle {
        None => format!(
            "It fits: it needs {total}, and models may use {} of {}.",
            fit.limit, machine.memory
        ),
        Some(Obstacle::Memory) => format!(
            "It does not fit: it needs {total}, but the machine has {}, of which models may use {}.",
            machine.memory, fit.limit
        ),
        Some(Obstacle::WorkingSet) => format!(
            "It does not fit: it needs {total}, but models may use only {1} of the machine's {0}.",
            machine.memory, fit.limit
        ),
        Some(Obstacle::Context { longest }) => {
            format!("It does not fit: the model supports contexts of up to {longest} tokens.")
        }
        Some(Obstacle::UnknownFamily) => format!(
            "Unknown whether it fits: model_type `{}` is not supported, so the size of its caches is unknown.\n\
            Its weights are known and would fit. Supported families: {}.",
            model.facts.model_type,
            families::names()
        ),
    };
    line(out, &verdict);
    if let Some(longest) = fit.too_long {
        line(
            out,
            &format!("In addition, the model supports contexts of up to {longest} tokens."),
        );
    }
}

fn memory(out: &mut String, fit: &Fit, model: &NamedModel, service: Service) {
    let facts = &model.facts;
    let need = &fit.need;
    let mut row = |what: &str, bytes: Bytes, why: &str| {
        line(out, &format!("  {what:<12}{:>10}  {why}", bytes.to_string()));
    };
    let source = match &facts.source {
        WeightsSource::Headers(census) => {
            let types: Vec<&str> = census
                .element_types
                .keys()
                .map(|stored| stored.as_str())
                .collect();
            format!("counted tensor by tensor ({})", types.join(", "))
        }
        WeightsSource::Index { .. } => "from the index of the files".to_owned(),
        WeightsSource::Config => "estimated from dimensions and format".to_owned(),
    };
    row("weights", need.weights, &source);
    if facts.left_out > Bytes::ZERO {
        let parts = left_out_parts(&facts.source);
        row(
            "",
            facts.left_out,
            &format!("in the files, but not loaded{parts}"),
        );
    }
    if let (Some(kv), Some(reserved), Some(dimensions)) = (need.kv, need.kv_reserved, &facts.dimensions) {
        let mut why = describe_cache(dimensions, kv, service, fit);
        if reserved > kv {
            why.push_str(&format!(
                "; {kv} for its tokens, the rest because caches grow in steps"
            ));
        }
        row("KV cache", reserved, &why);
    }
    if facts.dimensions.is_some() {
        row(
            "activations",
            need.activations,
            "during the prefill of a long prompt, in steps of 2048 tokens",
        );
    }
    row("runtime", need.runtime, "engine");
}

fn left_out_parts(source: &WeightsSource) -> String {
    let WeightsSource::Headers(census) = source else {
        return String::new();
    };
    let parts: Vec<&str> = census
        .iter()
        .filter(|(part, _)| !part.is_loaded())
        .map(|(part, _)| part.as_str())
        .collect();
    if parts.is_empty() {
        ": a second copy of the tied output head".to_owned()
    } else {
        format!(": {}", parts.join(", "))
    }
}

fn describe_cache(dimensions: &ModelDimensions, kv: Bytes, service: Service, fit: &Fit) -> String {
    let mut text = format!(
        "{} of {} tokens, {} bits per element",
        streams(service.concurrency),
        service.context_tokens,
        fit.kv_bits
    );
    let bits = KvBits::new(fit.kv_bits);
    let whole = dimensions
        .without_windows()
        .kv_bytes(service.context_tokens, bits)
        * u64::from(service.concurrency);
    if whole > kv {
        text.push_str(&format!("; {whole} if sliding layers kept every token"));
    }
    let count = |wanted: fn(&Attention) -> bool| {
        dimensions
            .layers
            .iter()
            .filter(|layer| wanted(&layer.attention))
            .count()
    };
    let linear = count(|attention| matches!(attention, Attention::GatedDelta { .. }));
    if linear > 0 {
        text.push_str(&format!(
            "; {linear} of {} layers keep a state of constant size",
            dimensions.layers.len()
        ));
    }
    text
}

fn speed(out: &mut String, prediction: &Prediction, service: Service, fit: &Fit, machine: &Machine) {
    let Prediction { decode, prefill } = prediction;
    let rate = decode.tokens_per_second;
    let basis = basis_words(decode.basis);
    let each = if service.concurrency == 1 {
        ""
    } else {
        " for each stream"
    };
    line(
        out,
        &format!(
            "\n{}ecoding with {} tokens in the cache: about {:.1} tokens/s{each} ({:.1} to {:.1}), {basis}.",
            if fit.admitted() { "D" } else { "If it fitted, d" },
            service.context_tokens,
            rate.p50,
            rate.p10,
            rate.p90
        ),
    );
    if service.concurrency > 1 {
        let all = decode.aggregate_tokens_per_second;
        line(
            out,
            &format!(
                "  {:.1} tokens/s for all {} streams together ({:.1} to {:.1}).",
                all.p50, service.concurrency, all.p10, all.p90
            ),
        );
    }
    line(out, &format!("  {}", bound_words(decode, machine)));
    match machine.hardware {
        Some(Hardware::Measured(measured)) => line(out, &heat_words(measured.sustained)),
        Some(Hardware::Chip(_)) | None => {}
    }
    let wait = prefill.first_token_seconds;
    line(
        out,
        &format!(
            "Time to first token of a {}-token prompt: about {} ({} to {}), prefill {:.0} tokens/s, {}.",
            service.prompt_tokens,
            seconds(wait.p50),
            seconds(wait.p10),
            seconds(wait.p90),
            prefill.tokens_per_second.p50,
            basis_words(prefill.basis)
        ),
    );
    let Some(others) = fit.first_token_variants else {
        return;
    };
    let range = |time: Interval| {
        format!(
            "{} ({} to {})",
            seconds(time.p50),
            seconds(time.p10),
            seconds(time.p90)
        )
    };
    if let Some(hit) = others.prefix_hit {
        line(
            out,
            &format!(
                "  With {} prompt tokens in the prefix cache: {}.",
                service.cached_tokens,
                range(hit)
            ),
        );
    }
    line(
        out,
        &format!(
            "  If the weights must be read from disk first: {}, {}.",
            range(others.cold_load),
            match others.cold_load_basis {
                Basis::Measured => "from the disk's measured rate",
                Basis::Calibrated | Basis::Nominal => "from published rates of such disks and chips",
            }
        ),
    );
}

fn seconds(value: f64) -> String {
    if value < 1.0 {
        format!("{:.0} ms", value * 1e3)
    } else {
        format!("{value:.1} s")
    }
}

fn basis_words(basis: Basis) -> &'static str {
    match basis {
        Basis::Measured => "from measurements of this machine",
        Basis::Calibrated => "from the data sheet, calibrated by requests on this machine",
        Basis::Nominal => "from the chip's data sheet, not measured",
    }
}

/// States whether the speed is sustained.
fn heat_words(sustained: Option<f64>) -> String {
    match sustained {
        Some(kept) => format!(
            "  This is the sustained speed of the hot machine, {:.0} % of the cold machine's.",
            kept * 100.0
        ),
        None => "  This is the speed of the cold machine: `rooflet probe --sustained 120` measures the sustained speed."
            .to_owned(),
    }
}

/// Formats memory traffic in decimal units, like bandwidths.
fn moved(bytes: f64) -> String {
    if bytes >= 1e8 {
        format!("{:.2} GB", bytes / 1e9)
    } else {
        format!("{:.1} MB", bytes / 1e6)
    }
}

fn bound_words(decode: &DecodePrediction, machine: &Machine) -> String {
    let moved = moved(decode.bytes_per_token);
    match decode.binding {
        Constraint::Bandwidth => {
            let rate = match machine.hardware {
                Some(Hardware::Chip(chip)) => {
                    format!(", and the memory bandwidth is {} at most", chip.bandwidth)
                }
                Some(Hardware::Measured(_)) | None => String::new(),
            };
            format!("Bound by memory bandwidth: every token moves {moved}{rate}.")
        }
        Constraint::Compute => {
            format!("Bound by compute; every token moves {moved}.")
        }
        Constraint::Memory | Constraint::WorkingSet | Constraint::Disk | Constraint::Policy => {
            format!("Every token moves {moved}.")
        }
        Constraint::Overhead => {
            format!("Bound by kernel launches; every token moves {moved}.")
        }
    }
}

/// Keeps for each chip the smallest memory in which the model fits, or the largest memory if none
/// fits.
pub(super) fn smallest_that_fits(fits: Vec<(Machine, Fit)>) -> Vec<(Machine, Fit)> {
    let mut chosen: Vec<(Machine, Fit)> = Vec::new();
    for (machine, fit) in fits {
        match chosen.last_mut() {
            Some((last, best)) if last.hardware == machine.hardware => {
                if !best.admitted() {
                    (*last, *best) = (machine, fit);
                }
            }
            Some(_) | None => chosen.push((machine, fit)),
        }
    }
    chosen
}

/// Returns one line per chip.
pub(super) fn table(fits: &[(Machine, Fit)], model: &NamedModel, service: Service) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header([
        "CHIP",
        "GPU",
        "BANDWIDTH",
        "MEMORY",
        "FITS",
        "TOKENS/S",
        "P10 TO P90",
        "FIRST TOKEN",
        "BOUND BY",
    ]);
    for (machine, fit) in fits {
        let bandwidth = match machine.hardware {
            Some(Hardware::Chip(chip)) => chip.bandwidth.to_string(),
            Some(Hardware::Measured(_)) | None => String::new(),
        };
        let shown = fit.prediction.as_ref().filter(|_| fit.admitted());
        let of = |text: fn(&Prediction) -> String| shown.map_or_else(|| "-".to_owned(), text);
        table.add_row([
            machine.name.clone(),
            gpu_cores(machine).map_or_else(String::new, |cores| cores.to_string()),
            bandwidth,
            machine.memory.to_string(),
            if fit.admitted() { "yes" } else { "no" }.to_owned(),
            of(|prediction| format!("{:.1}", prediction.decode.tokens_per_second.p50)),
            of(|prediction| {
                let rate = prediction.decode.tokens_per_second;
                format!("{:.1} to {:.1}", rate.p10, rate.p90)
            }),
            of(|prediction| seconds(prediction.prefill.first_token_seconds.p50)),
            fit.binding().unwrap_or("-").to_owned(),
        ]);
    }
    format!(
        "{}, {} of {} tokens, prompt of {} tokens, {}\n\
         Speeds are nominal: from data sheets, not measured. MEMORY is the smallest size in which it fits.\n\n{table}\n",
        describe_model(model),
        streams(service.concurrency),
        service.context_tokens,
        service.prompt_tokens,
        service.engine
    )
}

#[cfg(test)]
mod tests;
