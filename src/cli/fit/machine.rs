//! Which machine `rooflet fit` is about.

use crate::cli::Failure;
use crate::error::ExitStatus;
use crate::host::Host;
use crate::roofline::chip;
use crate::roofline::memory::allocatable;
use crate::roofline::predict::{Basis, Hardware};
use crate::roofline::sizing::Machine;
use crate::units::Bytes;

/// A machine, and what was assumed about it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChosenMachine {
    pub(super) machine: Machine,
    pub(super) notes: Vec<String>,
}

/// The chip that was named, else this machine.
pub(super) fn choose(
    chip: Option<&str>,
    gpu_cores: Option<u32>,
    memory: Option<Bytes>,
) -> Result<ChosenMachine, Failure> {
    let Some(name) = chip else {
        return Ok(this_machine(memory));
    };
    let chip = chip::find(name, gpu_cores, memory).map_err(|err| Failure::new(ExitStatus::Usage, err))?;
    let mut notes = Vec::new();
    let least = chip.memory.iter().min().copied().unwrap_or_default();
    match memory {
        None => notes.push(format!(
            "{least} of memory is assumed, the least that {} comes with; --memory chooses",
            chip.name
        )),
        Some(memory) if !chip.memory.contains(&memory) => {
            notes.push(format!("{} is not sold with {memory}", chip.name));
        }
        Some(_) => {}
    }
    let cores: Vec<u32> = chip::catalogue()
        .iter()
        .filter(|other| other.name == chip.name)
        .map(|other| other.gpu_cores)
        .collect();
    if gpu_cores.is_none() && cores.iter().any(|cores| *cores != chip.gpu_cores) {
        notes.push(format!(
            "{} GPU cores are assumed; {} comes with others, which --gpu-cores chooses",
            chip.gpu_cores, chip.name
        ));
    }
    Ok(ChosenMachine {
        machine: Machine::of_chip(chip, memory.unwrap_or(least)),
        notes,
    })
}

fn this_machine(memory: Option<Bytes>) -> ChosenMachine {
    let host = Host::Native;
    let identity = host.identity();
    let live = host.memory();
    let total = memory.unwrap_or(live.total);
    let working_set = live.working_set.filter(|_| memory.is_none());
    let chip = &identity.chip;
    let known = chip::of_machine(chip, live.total);
    let mut notes = Vec::new();
    if let Err(err) = &known {
        notes.push(format!("{err}; how fast this machine is has to be measured"));
    }
    let asked = memory.is_none() && (working_set.is_some() || chip.development);
    ChosenMachine {
        machine: Machine {
            name: chip.name.clone(),
            memory: total,
            limit: allocatable(total, working_set),
            limit_basis: if asked { Basis::Measured } else { Basis::Nominal },
            hardware: known.ok().map(Hardware::Chip),
        },
        notes,
    }
}

/// Every bin of every chip with every memory it is sold with, or only with `memory`.
pub(super) fn catalogue(memory: Option<Bytes>) -> Vec<Machine> {
    chip::catalogue()
        .iter()
        .flat_map(|chip| {
            let mut sizes = chip.memory.clone();
            sizes.sort_unstable();
            sizes.retain(|size| memory.is_none_or(|memory| memory == *size));
            sizes.into_iter().map(move |size| Machine::of_chip(chip, size))
        })
        .collect()
}
