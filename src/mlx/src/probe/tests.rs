//! Small probes with the engine of this machine.

use super::*;
use crate as mlx;
use crate::probe::sampling::Sampling;
use rooflet_model::config::FloatType;

const SAMPLING: Sampling = Sampling {
    sample: Duration::from_millis(2),
    figure: Duration::from_millis(20),
    min_samples: 10,
    max_samples: 10,
};

fn plan() -> Plan {
    Plan {
        total_bytes: 8 << 20,
        side: 256,
        tiny_side: 64,
        attention_tokens: 64,
        hidden_sizes: [128, 256],
        matmul_side: 64,
        prefill_side: 64,
        sampling: SAMPLING,
    }
}

#[test]
fn small_probe_measures_all_figures() {
    let _mlx = mlx::exclusive();
    let backend = Backend::current().unwrap();
    let sustained = Some(Duration::from_millis(20));
    let mut phases = Vec::new();
    let measured = measure_as(plan(), backend, sustained, &Clock::System, |phase| {
        phases.push(phase.to_owned())
    })
    .unwrap();
    assert_eq!(phases.len(), 4, "{phases:?}");
    assert_eq!((measured.read.buffers, measured.read.buffer_bytes), (4, 2 << 20));
    // 4 bits per weight, and a scale and a bias per 64 weights.
    let element = backend.compute_type(FloatType::BF16).bytes();
    assert_eq!(measured.qmv.buffer_bytes, 256 * 256 / 2 + 256 * 4 * 2 * element);
    assert_eq!(
        u64::from(measured.qmv.buffers),
        (8 << 20) / measured.qmv.buffer_bytes
    );
    let kernels: Vec<_> = measured
        .quantized
        .iter()
        .map(|figure| (figure.bits, figure.batch))
        .collect();
    assert_eq!(kernels, [(8, 1), (4, 2), (4, 4), (4, 8), (4, 16)]);
    assert_eq!(
        measured.quantized[0].figure.buffer_bytes,
        256 * 256 + 256 * 4 * 2 * element
    );
    let attention: Vec<_> = measured
        .attention
        .iter()
        .map(|figure| figure.queries_per_key)
        .collect();
    assert_eq!(attention, [1, 4]);
    // Keys and values of 8 heads with 64 elements each.
    assert_eq!(
        measured.attention[0].figure.buffer_bytes,
        2 * 8 * 64 * 64 * element
    );
    let rates = [
        measured.read,
        measured.copy.unwrap(),
        measured.triad.unwrap(),
        measured.qmv,
    ];
    let rates = rates
        .into_iter()
        .chain(measured.quantized.iter().map(|quantized| quantized.figure))
        .chain(measured.attention.iter().map(|attention| attention.figure));
    for figure in rates {
        assert_eq!(figure.samples, 10);
        assert!(figure.p10_bytes_per_second > 0.0);
        assert!(figure.p10_bytes_per_second <= figure.median_bytes_per_second);
        assert!(figure.median_bytes_per_second <= figure.p90_bytes_per_second);
    }
    assert!(measured.matmul_flops_per_second.unwrap().median > 0.0);
    assert!(measured.quantized_matmul_flops_per_second.unwrap().median > 0.0);
    let sustained = measured.sustained.unwrap();
    assert!(
        sustained.seconds >= 0.02 && sustained.thermal_factor > 0.0,
        "{sustained:?}"
    );
    assert!(measured.sizes_reduced);
}

/// The bytes are those of the plan and the seconds those of the clock. Without evaluation, 16 MiB
/// would seem to move within the microseconds of building the graph. No CPU moves 1 TB/s.
#[test]
fn memory_figures_include_the_evaluation() {
    let _mlx = mlx::exclusive();
    if Backend::current().unwrap() != Backend::Cpu {
        return;
    }
    let plan = Plan {
        total_bytes: 64 << 20,
        ..plan()
    };
    let sampler = Sampler::new(&Clock::System, SAMPLING);
    for measure in [memory::read, memory::copy, memory::triad] {
        let figure = measure(&plan, &sampler).unwrap();
        assert!(figure.median_bytes_per_second < 1e12, "{figure:?}");
    }
}

#[test]
fn small_kernels_take_longer_in_wider_layers() {
    let _mlx = mlx::exclusive();
    if Backend::current().unwrap() != Backend::Cpu {
        return;
    }
    let plan = Plan {
        hidden_sizes: [64, 8192],
        ..plan()
    };
    let sampler = Sampler::new(&Clock::System, SAMPLING);
    let is_longer = || {
        let layers = layer::small_kernels(&plan, Backend::Cpu, &sampler).unwrap();
        layers[1].seconds.median > layers[0].seconds.median
    };
    // Other processes may disturb single measurements, but not all of them.
    assert!((0..10).any(|_| is_longer()));
}
