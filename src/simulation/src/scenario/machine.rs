//! Macs of a scenario and the models on their disks, as types of the agent.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::scenario::Model;
use crate::scenario::Scenario;
use crate::scenario::ScenarioError;
use crate::scenario::class_name;
use rooflet_agent::models::ServableModel;
use rooflet_agent::{ParseQuietHoursError, QuietHours};
use rooflet_api::v1alpha1::{Chip, MacSpec, NodeModel};
use rooflet_base::quantity;
use rooflet_base::units::Bytes;
use rooflet_host::Identity;
use rooflet_model::kv_cache::KvBits;
use rooflet_model::library;
use rooflet_model::weights::{WeightFormat, Weights};
use rooflet_roofline::chip;
use rooflet_roofline::chip::ChipVariant;
use rooflet_roofline::kv_quantisation::KvQuantisation;
use rooflet_roofline::memory::{ServedModel, allocatable};
use rooflet_roofline::predict::{Hardware, ModelCost};

/// Properties of identical Macs.
#[derive(Debug)]
pub struct Class {
    pub name: String,
    pub chip: Chip,
    pub memory: Bytes,
    /// Memory that models may use.
    pub allocatable: Bytes,
    pub hardware: Hardware,
    pub labels: BTreeMap<String, String>,
    pub quiet_hours: QuietHours,
    /// Models by directory name.
    pub models: BTreeMap<String, ServableModel>,
    pub published: Vec<NodeModel>,
}

/// Simulated Mac.
#[derive(Debug, Clone)]
pub struct Machine {
    pub name: String,
    pub class: Arc<Class>,
}

impl Machine {
    pub fn identity(&self) -> Identity {
        identity(&self.name, self.class.chip.clone())
    }
}

/// Returns the identity of a simulated Mac.
pub fn identity(name: &str, chip: Chip) -> Identity {
    Identity {
        machine_id: Some(format!("simulated-{name}")),
        hostname: name.to_owned(),
        chip,
        operating_system: "simulated".to_owned(),
        os_build: "0".to_owned(),
        os: "darwin",
        architecture: "arm64",
    }
}

/// Returns the chip as a Mac reports it.
pub fn chip_of(variant: &ChipVariant) -> Chip {
    Chip {
        name: variant.name.clone(),
        gpu_cores: Some(variant.gpu_cores),
        cpu_cores: 10,
        machine_model: None,
        development: false,
    }
}

/// Returns all Macs, class by class.
pub fn machines(scenario: &Scenario) -> Result<Vec<Machine>, ScenarioError> {
    let models: Vec<_> = scenario
        .models
        .iter()
        .enumerate()
        .map(|(index, model)| Ok((model, servable(model, index)?)))
        .collect::<Result<_, _>>()?;
    let mut machines: Vec<Machine> = Vec::new();
    for (index, mac) in scenario.fleet.macs.iter().enumerate() {
        let class = Arc::new(class(scenario, mac, &models, &format!("fleet.macs[{index}]"))?);
        if machines.iter().any(|known| known.class.name == class.name) {
            let message = format!("duplicate class `{}`; set different names", class.name);
            return Err(ScenarioError::new(format!("fleet.macs[{index}].name"), message));
        }
        machines.extend((1..=mac.count).map(|number| Machine {
            name: format!("{}-{number}", class.name),
            class: class.clone(),
        }));
    }
    Ok(machines)
}

fn class(
    scenario: &Scenario,
    mac: &MacSpec,
    models: &[(&Model, ServableModel)],
    field: &str,
) -> Result<Class, ScenarioError> {
    let memory = quantity::parse_bytes(&mac.memory)
        .map_err(|err| ScenarioError::new(format!("{field}.memory"), err))?;
    let variant = chip::find(&mac.chip, mac.gpu_cores, Some(memory))
        .map_err(|err| ScenarioError::new(format!("{field}.chip"), err))?;
    let chip = chip_of(variant);
    let name = class_name(mac);
    let hardware = Hardware::Chip(variant);
    let here: BTreeMap<_, _> = models
        .iter()
        .filter(|(model, _)| model.on.is_empty() || model.on.contains(&name))
        .map(|(model, servable)| (model.name.clone(), servable.clone()))
        .collect();
    let published = here.iter().map(|(name, model)| {
        let architecture = model.architecture.to_owned();
        model
            .served
            .publish(name.clone(), architecture, model.max_context_tokens)
    });
    let quiet_hours = scenario.fleet.quiet_hours.get(&name).map(|text| text.parse());
    let quiet_hours = quiet_hours
        .transpose()
        .map_err(|err: ParseQuietHoursError| ScenarioError::new(format!("fleet.quietHours.{name}"), err))?;
    Ok(Class {
        quiet_hours: quiet_hours.unwrap_or_default(),
        labels: scenario.fleet.labels.get(&name).cloned().unwrap_or_default(),
        published: published.collect(),
        models: here,
        name,
        chip,
        memory,
        allocatable: allocatable(memory, None),
        hardware,
    })
}

fn servable(model: &Model, index: usize) -> Result<ServableModel, ScenarioError> {
    let wrong = |name: &str, message: String| ScenarioError::new(format!("models[{index}].{name}"), message);
    let format = model.quantization.as_deref().map(|format| {
        let parsed: Result<WeightFormat, _> = format.parse();
        parsed.map_err(|err| wrong("quantization", err.to_string()))
    });
    let found =
        library::find(&model.model, format.transpose()?).map_err(|err| wrong("model", err.to_string()))?;
    Ok(ServableModel {
        unquantisable: KvQuantisation::of_dimensions(8, &found.dimensions).err(),
        path: format!("/models/{}", model.name).into(),
        fingerprint: index as u64 + 1,
        architecture: found.key,
        served: Arc::new(ServedModel {
            cost: ModelCost {
                weights: Weights::estimate(&found.dimensions, found.format),
                dimensions: found.dimensions,
            },
            kv_bits: KvBits::HALF,
        }),
        max_context_tokens: model.max_context_tokens,
        pull: None,
    })
}
