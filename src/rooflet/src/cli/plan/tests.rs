use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

const DEMAND: [&str; 8] = [
    "--model=qwen3-8b-4bit",
    "--requests-per-second=0.05",
    "--prompt=500",
    "--answer=100",
    "--context=1024",
    "--concurrency=2",
    "--first-token=30s",
    "--decode=2",
];
const FLEET: &str = "--fleet=2 x M4 16Gi";

/// Runs with the flags of [`DEMAND`], some of them replaced or added.
fn run_with(changed: &[&str]) -> Result<ExitStatus, Failure> {
    let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
    let kept = DEMAND
        .into_iter()
        .chain([FLEET])
        .filter(|flag| !changed.iter().any(|other| name(other) == name(flag)))
        .filter(|flag| !(name(flag) == "--fleet" && changed.iter().any(|other| name(other) == "--compare")));
    let words = std::iter::once("rooflet")
        .chain(kept)
        .chain(changed.iter().copied());
    let line = Line::try_parse_from(words).map_err(|err| Failure::new(ExitStatus::Usage, err))?;
    run(&line.args)
}

#[test]
fn exit_status_shows_whether_the_demand_fits() {
    let status = |changed: &[&str]| run_with(changed).unwrap_or_else(|failure| panic!("{:#}", failure.error));
    assert_eq!(status(&["-o=json"]), ExitStatus::Success);
    assert_eq!(status(&["--requests-per-second=10"]), ExitStatus::DoesNotFit);
    for compared in [
        ["--compare=M4 16Gi", "--compare=M1 8Gi"],
        ["--compare=M4 Pro/16 64Gi", "--compare=M5 Pro/20 64Gi"],
    ] {
        assert_eq!(status(&compared), ExitStatus::Success);
    }
    let buy = |rate: &'static str| [rate, "--recommend", "--offer=3 x M4 Max/40 64Gi 150W @ 2999"];
    assert_eq!(status(&buy("--requests-per-second=0.3")), ExitStatus::Success);
    assert_eq!(status(&buy("--requests-per-second=99")), ExitStatus::DoesNotFit);
}

#[test]
fn errors_name_the_flag_and_a_remedy() {
    for (flag, expected) in [
        ("--decode=-1", "--decode: -1 must be more than 0"),
        ("--decode=NaN", "--decode: NaN must be more than 0"),
        ("--decode=0", "--decode: 0 must be more than 0"),
        ("--decode=inf", "--decode: inf must be more than 0"),
        (
            "--requests-per-second=-0.5",
            "--requests-per-second: -0.5 must be from 0",
        ),
        (
            "--requests-per-second=NaN",
            "--requests-per-second: NaN must be from 0",
        ),
        (
            "--first-token=soon",
            "--first-token: `soon` must be a duration above zero, such as 3s",
        ),
        ("--first-token=0s", "--first-token: `0s` must be a duration"),
        ("--first-token=-3s", "--first-token: `-3s` must be a duration"),
        (
            "--context=100",
            "--context: 100 is less than promptTokens + answerTokens = 600",
        ),
        ("--model=qwen9-4bit", "--model: unknown model `qwen9-4bit`"),
        (
            "--model=qwen3-8b",
            "--quantization: the name `qwen3-8b` contains no weight format",
        ),
        ("--quantization=tiny", "--quantization: "),
        ("--model=./nowhere", "--model: "),
        ("--fleet=M9 16Gi", "--fleet `M9 16Gi`: no chip is called `M9`"),
        ("--fleet=M4/11 16Gi", "--fleet `M4/11 16Gi`: "),
        ("--fleet=M4 16Gi disk=lots", "--fleet `M4 16Gi disk=lots`: "),
        (
            "--fleet=M4 17Gi",
            "--fleet `M4 17Gi`: Apple M4 with 10 GPU cores is sold with",
        ),
        (
            "--fleet=M2 Max/30 96Gi",
            "Apple M2 Max with 30 GPU cores is sold with 32.0 GiB, 64.0 GiB, not with 96.0 GiB",
        ),
        (
            "--fleet=M3 Ultra/60 512Gi",
            "Apple M3 Ultra with 60 GPU cores is sold with 96.0 GiB, 256.0 GiB, not with 512.0 GiB",
        ),
        ("--fleet=M4 16Gi, M4 16Gi", "--fleet `M4 16Gi`: duplicate class `"),
        ("--fleet=0 x M4 16Gi", "--fleet: every count is 0"),
        (
            "--fleet=99999 x M4 16Gi",
            "--fleet `M4 16Gi`: 99999 must be from 0 to 10000",
        ),
        (
            "--fleet=M4 16Gi @ -5",
            "--fleet: `M4 16Gi @ -5`: the price `-5` must be a number of 0 or more",
        ),
        (
            "--fleet=M4 16Gi nanW",
            "--fleet: `M4 16Gi nanW`: the power in watts `nan`",
        ),
        ("--fleet=", "--fleet: ``: chip and memory are required"),
        ("--compare=M9 16Gi", "--compare `M9 16Gi`: no chip is called"),
        ("--recommend", "--recommend needs a catalogue"),
        ("--offer=M4 16Gi", "--recommend"),
        ("--prompt=0", "--prompt"),
        ("--replicas=-1", "--replicas"),
    ] {
        let failure = run_with(&[flag]).expect_err(flag);
        let message = format!("{:#}", failure.error);
        assert_eq!(failure.status, ExitStatus::Usage, "{flag}: {message}");
        assert!(message.contains(expected), "{flag}: {message}");
    }
    let guide = format!("--model={}/examples/models/guide", rooflet_testing::repository());
    let failure = run_with(&[&guide, "--context=8192"]).expect_err("too long a context");
    let message = format!("{:#}", failure.error);
    assert!(
        message.contains("--context: 8192 tokens") && message.contains(", 4096 tokens"),
        "{message}"
    );
    let directory = tempfile::tempdir().unwrap();
    let shapes = directory.path().join("shapes.json");
    let tiny = r#"{"tiny": {"L": 2, "V": 100, "d": 64, "ff": 128, "hd": 16, "mats": 3, "nh": 4, "nkv": 2, "tied": 1}}"#;
    std::fs::write(&shapes, tiny).unwrap();
    let model = format!("--model={}#tiny", shapes.display());
    assert_eq!(
        run_with(&[&model, "--quantization=mlx4"]).unwrap(),
        ExitStatus::Success
    );
    for (format, expected) in [
        (
            "--quantization=q4_k_m",
            "--quantization: nodes run MLX, which does not run q4_k_m: use mlx4",
        ),
        ("--quantization=tiny", "--quantization: "),
    ] {
        let failure = run_with(&[&model, format]).expect_err(format);
        let message = format!("{:#}", failure.error);
        assert_eq!(failure.status, ExitStatus::Usage, "{message}");
        assert!(message.contains(expected), "{message}");
    }
    let failure = run_with(&["--recommend", "--offer=M9 16Gi @ 5"]).expect_err("no such chip");
    let message = format!("{:#}", failure.error);
    assert!(
        message.contains("--offer `M9 16Gi`: no chip is called"),
        "{message}"
    );
}

#[test]
fn errors_of_a_manifest_name_the_field() {
    let refused = |text: &str| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("plan.yaml");
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        let line = Line::try_parse_from(["rooflet", "-f", file]).unwrap();
        let failure = run(&line.args).expect_err(text);
        assert_eq!(failure.status, ExitStatus::Config, "{:#}", failure.error);
        format!("{:#}", failure.error)
    };
    let plan = |spec: &str| {
        format!("apiVersion: rooflet.dev/v1alpha1\nkind: CapacityPlan\nmetadata: {{name: p}}\nspec: {spec}\n")
    };
    let demand = "demand: [{model: qwen3-8b-4bit, requestsPerSecond: 1, promptTokens: 9, answerTokens: 9}]";
    for (spec, expected) in [
        ("{demand: []}".to_owned(), "spec.demand"),
        (
            format!("{{{demand}, fleet: {{macs: [{{chip: M9, memory: 16Gi}}]}}}}"),
            "spec.fleet.macs[0].chip: no chip is called `M9`",
        ),
        (
            format!("{{{demand}, fleet: {{macs: [{{chip: M4, memory: 16Gi, price: -1}}]}}}}"),
            "spec.fleet.macs[0].price",
        ),
        (
            format!("{{{demand}, fleet: {{macs: [{{chip: M4, memory: 16Gi, watts: lots}}]}}}}"),
            "spec.fleet.macs[0].watts",
        ),
        (
            format!("{{{demand}, fleet: {{macs: [{{chip: M4, memory: much}}]}}}}"),
            "spec.fleet.macs[0].memory",
        ),
        (
            format!("{{{demand}, maxUtilizationPercent: 0}}"),
            "spec.maxUtilizationPercent",
        ),
    ] {
        let message = refused(&plan(&spec));
        assert!(message.contains(expected), "{spec}: {message}");
    }
}

#[test]
fn equal_fleets_are_reported_as_equal() {
    let best = |fleets: &[(&str, f64, Option<f64>)]| {
        let verdict = |(name, carries, price): &(&str, f64, Option<f64>)| {
            let verdict = PlanVerdict {
                feasible: true,
                demand_factor: *carries,
                price: *price,
                ..PlanVerdict::default()
            };
            ((*name).to_owned(), verdict)
        };
        table::best(&fleets.iter().map(verdict).collect::<Vec<_>>())
    };
    assert_eq!(
        best(&[("a", 2.0, None), ("b", 2.0, None)]),
        "a and b carry the same."
    );
    assert_eq!(best(&[("a", 2.0, None), ("b", 1.5, None)]), "a carries the most.");
    assert_eq!(
        best(&[("a", 2.0, Some(3.0)), ("b", 2.0, Some(4.0))]),
        "Of the fleets that carry the demand, a costs the least and carries as much as any other."
    );
    assert_eq!(
        best(&[("a", 2.0, Some(3.0)), ("b", 4.0, Some(4.0))]),
        "Of the fleets that carry the demand, a costs the least; b carries the most."
    );
}

#[test]
fn demand_is_required_and_the_error_names_its_flags() {
    let line = Line::try_parse_from(["rooflet", FLEET]).expect("valid flags");
    let problem = run(&line.args)
        .map(|_| ())
        .expect_err("no demand")
        .error
        .to_string();
    assert!(problem.contains("--filename FILE, or --model MODEL"), "{problem}");
}

#[test]
fn plan_without_requests_has_no_multiples() {
    let line = Line::try_parse_from([
        "rooflet",
        "--model=qwen3-8b-4bit",
        "--requests-per-second=0",
        "--prompt=500",
        "--answer=100",
    ])
    .expect("valid flags");
    let mut spec = flags::spec(&line.args);
    spec.fleet.macs = macs::fleet("2 x M4 16Gi").expect("valid Macs");
    let verdict = ask(&line.args, &spec)
        .map_err(|failure| failure.error)
        .expect("a valid plan");
    let text = table::text(&verdict);
    assert!(verdict.feasible && !text.contains("times the demand"), "{text}");
    let compared = table::comparison(&[("two".to_owned(), verdict)]);
    assert!(
        !compared.contains(" x ") && compared.contains("\ntwo carries the demand."),
        "{compared}"
    );
}
