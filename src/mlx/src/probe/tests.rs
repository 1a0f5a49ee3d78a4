//! Small probes on this machine's engine.

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
fn a_small_probe_measures_what_it_says() {
    let _mlx = mlx::exclusive();
    let backend = Backend::current().unwrap();
    let sustained = Some(Duration::from_millis(20));
    let mut said = Vec::new();
    let measured = measure_as(plan(), backend, sustained, &Clock::System, |what| {
        said.push(what.to_owned())
    })
    .unwrap();
    assert_eq!(said.len(), 4, "{said:?}");
    assert_eq!((measured.read.buffers, measured.read.buffer_bytes), (4, 2 << 20));
    // 4 bits for each weight, and a scale and a bias for every 64.
    let element = backend.compute_type(FloatType::BF16).bytes();
    assert_eq!(measured.qmv.buffer_bytes, 256 * 256 / 2 + 256 * 4 * 2 * element);
    assert_eq!(
        u64::from(measured.qmv.buffers),
        (8 << 20) / measured.qmv.buffer_bytes
    );
    let kernels: Vec<_> = measured
        .quantized
        .iter()
        .map(|one| (one.bits, one.batch))
        .collect();
    assert_eq!(kernels, [(8, 1), (4, 2), (4, 4), (4, 8), (4, 16)]);
    assert_eq!(
        measured.quantized[0].figure.buffer_bytes,
        256 * 256 + 256 * 4 * 2 * element
    );
    let attention: Vec<_> = measured.attention.iter().map(|one| one.queries_per_key).collect();
    assert_eq!(attention, [1, 4]);
    // Keys and values of 8 heads of 64.
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
        .chain(measured.quantized.iter().map(|one| one.figure))
        .chain(measured.attention.iter().map(|one| one.figure));
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

/// The bytes come from the plan, the seconds from the clock: where nothing is evaluated, 16 MiB
/// seem to be moved in the microseconds it takes to ask for it. No CPU moves 1 TB/s.
#[test]
fn the_engine_really_moves_the_bytes() {
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

/// Arithmetic of a layer's small kernels does not blow up over a chain: not-a-number is slow on
/// some machines.
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
    // What else runs on the machine may disturb a measurement, not every one.
    assert!((0..10).any(|_| is_longer()));
}
