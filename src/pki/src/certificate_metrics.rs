//! Metric of the certificates that a process uses.

use std::fmt;
use std::sync::{Arc, Mutex};

use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::certificate_files::CertificateFiles;
use super::machine_tls::MachineTls;
use super::serving::ServingCertificate;
use rooflet_base::metrics::{ComputedGauge, ComputedSample, Registry, Result};
use rooflet_base::mutex::lock;

const EXPIRY: &str = "rooflet_certificate_expiry_timestamp_seconds";

const GAUGES: &[ComputedGauge] = &[ComputedGauge {
    name: EXPIRY,
    help: "Time at which a certificate in use expires, in seconds since 1970: apiserver, gateway and web (serving certificates that the server issues for itself), machine (issued by the fleet) and files (--tls-cert).",
    labels: &["certificate"],
}];

/// Returns the certificate in use. `None` before there is one.
type Source = Box<dyn Fn() -> Option<Arc<CertifiedKey>> + Send + Sync>;

/// Certificates of a process, which the metric shows. Clones share the certificates.
#[derive(Clone, Default)]
pub struct CertificateMetrics(Arc<Mutex<Vec<(&'static str, Source)>>>);

impl fmt::Debug for CertificateMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CertificateMetrics").finish_non_exhaustive()
    }
}

impl CertificateMetrics {
    pub fn register(&self, registry: &Registry) -> Result<()> {
        let sources = Arc::clone(&self.0);
        registry.register_computed(GAUGES, move || {
            let sample = |(certificate, source): &(&'static str, Source)| {
                Some(ComputedSample {
                    gauge: EXPIRY,
                    labels: vec![(*certificate).to_owned()],
                    value: not_after(&*source()?)?,
                })
            };
            lock(&sources).iter().filter_map(sample).collect()
        })
    }

    /// Adds the certificate of this machine.
    pub fn observe_machine(&self, tls: &Arc<MachineTls>) {
        let tls = Arc::clone(tls);
        lock(&self.0).push(("machine", Box::new(move || tls.own())));
    }

    /// Adds a serving certificate that this process issues for itself. `server` names the server.
    pub fn observe_serving(&self, server: &'static str, serving: &Arc<ServingCertificate>) {
        let serving = Arc::clone(serving);
        lock(&self.0).push((server, Box::new(move || Some(serving.current()))));
    }

    /// Adds a certificate from files.
    pub fn observe_files(&self, files: &Arc<CertificateFiles>) {
        let files = Arc::clone(files);
        lock(&self.0).push(("files", Box::new(move || Some(files.current()))));
    }
}

/// Returns the end of the validity of the first certificate, in seconds since 1970.
fn not_after(pair: &CertifiedKey) -> Option<f64> {
    let (_, certificate) = X509Certificate::from_der(pair.cert.first()?).ok()?;
    Some(certificate.validity().not_after.timestamp() as f64)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Authority, AuthorityKind, Revocations};
    use rooflet_base::clock::{Clock, ManualClock, at};
    use rooflet_base::metrics::render;

    #[test]
    fn metric_follows_the_certificate_in_use() {
        let registry = Registry::new();
        let metrics = CertificateMetrics::default();
        metrics.register(&registry).expect("valid metrics");
        let tls = MachineTls::new(Revocations::default());
        metrics.observe_machine(&tls);
        assert!(!render(&registry).contains("machine\"} "), "no certificate yet");
        // `date -u -d 2026-04-01 +%s` and `date -u -d 2027-04-01 +%s`
        for (year, expect) in [(2026, "1775001600"), (2027, "1806537600")] {
            let mut params = rcgen::CertificateParams::default();
            params.not_after = rcgen::date_time_ymd(year, 4, 1);
            let key = rcgen::KeyPair::generate().expect("a key");
            let certificate = params.self_signed(&key).expect("a certificate").pem();
            tls.set_certificate(&certificate, &key.serialize_pem())
                .expect("a usable certificate");
            let line = format!("{EXPIRY}{{certificate=\"machine\"}} {expect}\n");
            assert!(render(&registry).contains(&line), "{}", render(&registry));
        }
    }

    #[test]
    fn metric_shows_the_expiry_of_a_serving_certificate_and_its_renewal() {
        // `date -u -d 2027-01-01 +%s`. Serving certificates are valid for 365 days, and are renewed
        // after 240 days.
        let start = 1_798_761_600;
        let manual = ManualClock::new(at(start));
        let clock = Clock::Manual(manual.clone());
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::open(directory.path(), AuthorityKind::Serving, &clock);
        let authority = Arc::new(authority.expect("a new authority"));
        let serving = ServingCertificate::issue(authority, [], clock).expect("a certificate");
        let registry = Registry::new();
        let metrics = CertificateMetrics::default();
        metrics.register(&registry).expect("valid metrics");
        metrics.observe_serving("apiserver", &serving);
        let day = 24 * 3600;
        let expiry = |issued: i64| format!("{EXPIRY}{{certificate=\"apiserver\"}} {}\n", issued + 365 * day);
        assert!(
            render(&registry).contains(&expiry(start)),
            "{}",
            render(&registry)
        );
        manual.advance(Duration::from_secs(240 * 24 * 3600));
        assert!(
            render(&registry).contains(&expiry(start + 240 * day)),
            "{}",
            render(&registry)
        );
    }
}
