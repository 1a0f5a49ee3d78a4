use std::collections::BTreeSet;

use super::*;
use crate::models::TinyModels;
use rooflet_artifact::model_dir::ModelDir;
use rooflet_mlx::exclusive;
use rooflet_model::families;

fn checks(groups: &[Group]) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut report = |check| checks.push(check);
    run(groups, Duration::ZERO, &Host::Native, &Clock::System, &mut report);
    checks
}

#[test]
fn models_and_soak_pass_on_this_machine() {
    let _mlx = exclusive();
    let checks = checks(&[Group::Models, Group::Soak]);
    for check in &checks {
        assert_eq!(check.status, Status::Ok, "{check:?}");
    }
    let models = checks.iter().filter(|check| check.group == Group::Models);
    assert_eq!(models.count(), TinyModels::unpack().unwrap().cases.len());
}

/// A wrong reference has the same effect as a device that computes other logits and tokens.
#[test]
fn corrupted_reference_fails_on_every_backend() {
    let _mlx = exclusive();
    let mut models = TinyModels::unpack().unwrap();
    models.cases.retain(|model, _| model == "qwen3");
    let statuses = |models: &TinyModels, backend: Backend| {
        let mut statuses = Vec::new();
        models::check_all(models, backend, &mut |check| statuses.push(check.status));
        statuses
    };
    let cpu = Backend::Cpu;
    assert_eq!(statuses(&models, cpu), [Status::Ok]);

    let correct = models.cases.clone();
    // One logit of one case is wrong.
    models.cases.get_mut("qwen3").unwrap()[0].logits[7] += 1e-3;
    assert_eq!(statuses(&models, cpu), [Status::Fail]);

    // One token of one case is wrong.
    models.cases = correct.clone();
    let token = &mut models.cases.get_mut("qwen3").unwrap()[1].greedy[3];
    *token = (*token + 1) % 272;
    assert_eq!(statuses(&models, cpu), [Status::Fail]);

    // All logits are wrong, which the more tolerant rule for GPUs must detect as well.
    models.cases = correct;
    for case in models.cases.get_mut("qwen3").unwrap() {
        case.logits.reverse();
        case.last.reverse();
    }
    let all = statuses(&models, Backend::Metal);
    assert_eq!(all, [Status::Fail; 3]);
}

#[test]
fn every_family_of_the_engine_has_a_model() {
    let models = TinyModels::unpack().unwrap();
    let architectures = models.cases.keys().map(|model| {
        let shape = ModelDir::inspect(&models.path(model)).unwrap().shape;
        shape.config.architecture
    });
    let tested: BTreeSet<String> = architectures
        .map(|architecture| architecture.to_string())
        .collect();
    let names = families::engine_names();
    let missing: Vec<_> = names.split(", ").filter(|name| !tested.contains(*name)).collect();
    assert!(missing.is_empty(), "no model of {missing:?}");
}
