//! Facts that were recorded on a Mac: a JSON file, written by `rooflet doctor --save` or taken from
//! a public report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Facts, LIST_SYSCTLS, MetalDevice, NUMBER_SYSCTLS, ProcessInfo, REGISTRY_PROPERTIES, RegistryValue,
    TEXT_SYSCTLS, THERMAL_PRESSURE, VmStatistics,
};

/// Recorded values of one Mac at one moment. An entry is missing if the system did not provide its
/// value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RecordedFacts {
    /// URLs of the publications of the values. Empty if rooflet recorded the values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub source: Vec<String>,
    pub sysctl: BTreeMap<String, SysctlValue>,
    /// Raw size in bytes of every sysctl that the system provides. Published reports do not state it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctl_bytes: BTreeMap<String, usize>,
    /// Properties by class of the I/O registry.
    pub registry: BTreeMap<String, BTreeMap<String, RegistryValue>>,
    pub notify: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmStatistics>,
    pub metal: Vec<MetalDevice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_metal_device: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_info: Option<ProcessInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_source: Option<String>,
}

/// Value of a sysctl. Without a recorded size, a number has 4 bytes if it fits, otherwise 8 bytes.
/// Each number of a list has 8 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SysctlValue {
    Number(u64),
    List(Vec<u64>),
    Text(String),
}

/// Error of a text that is not a recording.
#[derive(Debug, thiserror::Error)]
#[error("not a recording of a Mac's facts")]
pub struct InvalidRecording(#[from] serde_json::Error);

impl RecordedFacts {
    /// Parses a recording.
    pub fn parse(text: &str) -> Result<Self, InvalidRecording> {
        Ok(serde_json::from_str(text)?)
    }

    /// Records the values of `facts`. The recording contains no host name, user name, serial
    /// number, hardware id or boot id.
    pub fn record(facts: &dyn Facts) -> Self {
        let texts = TEXT_SYSCTLS
            .iter()
            .filter(|name| **name != "kern.bootsessionuuid")
            .filter_map(|name| Some(((*name).to_owned(), SysctlValue::Text(text(&facts.sysctl(name)?)?))));
        let numbers = NUMBER_SYSCTLS.iter().filter_map(|name| {
            Some((
                (*name).to_owned(),
                SysctlValue::Number(number(&facts.sysctl(name)?)?),
            ))
        });
        let lists = LIST_SYSCTLS
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), SysctlValue::List(list(&facts.sysctl(name)?)))));
        let sizes = [TEXT_SYSCTLS, NUMBER_SYSCTLS, LIST_SYSCTLS].concat();
        let sizes = sizes
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), facts.sysctl(name)?.len())));
        let mut registry: BTreeMap<String, BTreeMap<String, RegistryValue>> = BTreeMap::new();
        for (class, property) in REGISTRY_PROPERTIES {
            if let Some(value) = facts.registry(class, property) {
                let properties = registry.entry((*class).to_owned()).or_default();
                properties.insert((*property).to_owned(), value);
            }
        }
        let thermal = facts.notify_state(THERMAL_PRESSURE);
        Self {
            source: Vec::new(),
            sysctl: texts.chain(numbers).chain(lists).collect(),
            sysctl_bytes: sizes.collect(),
            registry,
            notify: thermal
                .map(|level| (THERMAL_PRESSURE.to_owned(), level))
                .into_iter()
                .collect(),
            vm: facts.vm_statistics(),
            metal: facts.metal_devices(),
            default_metal_device: facts.has_default_metal_device(),
            process_info: facts.process_info(),
            power_source: facts.power_source(),
        }
    }
}

impl Facts for RecordedFacts {
    fn sysctl(&self, name: &str) -> Option<Vec<u8>> {
        self.sysctl.get(name).map(|value| match value {
            SysctlValue::Number(number) => match (u32::try_from(*number), self.sysctl_bytes.get(name)) {
                (Ok(number), None | Some(4)) => number.to_le_bytes().to_vec(),
                (_, _) => number.to_le_bytes().to_vec(),
            },
            SysctlValue::List(numbers) => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
            SysctlValue::Text(text) => [text.as_bytes(), b"\0"].concat(),
        })
    }

    fn registry(&self, class: &str, property: &str) -> Option<RegistryValue> {
        self.registry.get(class)?.get(property).cloned()
    }

    fn notify_state(&self, name: &str) -> Option<u64> {
        self.notify.get(name).copied()
    }

    fn vm_statistics(&self) -> Option<VmStatistics> {
        self.vm
    }

    fn metal_devices(&self) -> Vec<MetalDevice> {
        self.metal.clone()
    }

    fn has_default_metal_device(&self) -> Option<bool> {
        self.default_metal_device
    }

    fn process_info(&self) -> Option<ProcessInfo> {
        self.process_info
    }

    fn power_source(&self) -> Option<String> {
        self.power_source.clone()
    }
}

/// Returns the sysctls of a number that the system provides in another size than 4 or 8 bytes, with
/// this size. rooflet treats such values as missing.
pub fn undecodable(facts: &dyn Facts) -> Vec<(&'static str, usize)> {
    let sizes = NUMBER_SYSCTLS
        .iter()
        .filter_map(|name| Some((*name, facts.sysctl(name)?)));
    sizes
        .filter(|(_, bytes)| number(bytes).is_none())
        .map(|(name, bytes)| (name, bytes.len()))
        .collect()
}

/// Decodes a sysctl integer of 4 or 8 bytes.
pub(crate) fn number(bytes: &[u8]) -> Option<u64> {
    match bytes.len() {
        4 => Some(u64::from(u32::from_le_bytes(bytes.try_into().ok()?))),
        8 => Some(u64::from_le_bytes(bytes.try_into().ok()?)),
        _ => None,
    }
}

/// Decodes complete numbers of 8 bytes.
pub(crate) fn list(bytes: &[u8]) -> Vec<u64> {
    let numbers = bytes.chunks_exact(8).map(|chunk| chunk.try_into());
    numbers.flatten().map(u64::from_le_bytes).collect()
}

/// Decodes a sysctl text up to its terminating zero. `None` if it is empty.
pub(crate) fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..end]).trim().to_owned();
    (!text.is_empty()).then_some(text)
}
