//! Creates and registers series, each with all its label sets.

use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    Result,
};

/// Upper bounds in seconds: the measured operations take from 100 ms to one hour.
const DURATION_BUCKETS: [f64; 14] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
];

/// Name and help text of a series.
pub(super) type MetricDesc<'a> = (&'a str, &'a str);

/// Registers series.
pub(super) struct Registrar<'a>(pub(super) &'a Registry);

impl Registrar<'_> {
    pub(super) fn counter(&self, (name, help): MetricDesc<'_>) -> Result<IntCounter> {
        self.register(IntCounter::new(name, help)?)
    }

    pub(super) fn gauge(&self, (name, help): MetricDesc<'_>) -> Result<IntGauge> {
        self.register(IntGauge::new(name, help)?)
    }

    pub(super) fn counters<const N: usize>(
        &self,
        (name, help): MetricDesc<'_>,
        labels: [&str; N],
        sets: &[[&str; N]],
    ) -> Result<IntCounterVec> {
        self.register_all(IntCounterVec::new(Opts::new(name, help), &labels)?, sets)
    }

    pub(super) fn gauges<const N: usize>(
        &self,
        (name, help): MetricDesc<'_>,
        labels: [&str; N],
        sets: &[[&str; N]],
    ) -> Result<IntGaugeVec> {
        self.register_all(IntGaugeVec::new(Opts::new(name, help), &labels)?, sets)
    }

    pub(super) fn histograms<const N: usize>(
        &self,
        (name, help): MetricDesc<'_>,
        labels: [&str; N],
        sets: &[[&str; N]],
    ) -> Result<HistogramVec> {
        let options = HistogramOpts::new(name, help).buckets(DURATION_BUCKETS.to_vec());
        self.register_all(HistogramVec::new(options, &labels)?, sets)
    }

    pub(super) fn register<C: Collector + Clone + 'static>(&self, metric: C) -> Result<C> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    fn register_all<B: MetricVecBuilder + 'static, const N: usize>(
        &self,
        metric: MetricVec<B>,
        sets: &[[&str; N]],
    ) -> Result<MetricVec<B>> {
        for set in sets {
            // Creates the series at zero: `rate()` misses the first increment of a series that appears with it.
            metric.get_metric_with_label_values(set)?;
        }
        self.register(metric)
    }
}
