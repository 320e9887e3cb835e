//! Makes series and registers them, each with all the label sets it will have.

use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    Result,
};

/// Seconds; what is measured takes from a tenth of a second to an hour.
const BUCKETS: [f64; 14] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
];

/// Name and meaning of a series.
pub(super) type Title<'a> = (&'a str, &'a str);

/// Where series are registered.
pub(super) struct Register<'a>(pub(super) &'a Registry);

impl Register<'_> {
    pub(super) fn counter(&self, (name, help): Title<'_>) -> Result<IntCounter> {
        self.keep(IntCounter::new(name, help)?)
    }

    pub(super) fn gauge(&self, (name, help): Title<'_>) -> Result<IntGauge> {
        self.keep(IntGauge::new(name, help)?)
    }

    pub(super) fn counters<const N: usize>(
        &self,
        (name, help): Title<'_>,
        labels: [&str; N],
        sets: &[[&str; N]],
    ) -> Result<IntCounterVec> {
        self.keep_all(IntCounterVec::new(Opts::new(name, help), &labels)?, sets)
    }

    pub(super) fn gauges<const N: usize>(
        &self,
        (name, help): Title<'_>,
        labels: [&str; N],
        sets: &[[&str; N]],
    ) -> Result<IntGaugeVec> {
        self.keep_all(IntGaugeVec::new(Opts::new(name, help), &labels)?, sets)
    }

    pub(super) fn durations<const N: usize>(
        &self,
        (name, help): Title<'_>,
        labels: [&str; N],
        sets: &[[&str; N]],
    ) -> Result<HistogramVec> {
        let options = HistogramOpts::new(name, help).buckets(BUCKETS.to_vec());
        self.keep_all(HistogramVec::new(options, &labels)?, sets)
    }

    pub(super) fn keep<C: Collector + Clone + 'static>(&self, made: C) -> Result<C> {
        self.0.register(Box::new(made.clone()))?;
        Ok(made)
    }

    fn keep_all<B: MetricVecBuilder + 'static, const N: usize>(
        &self,
        made: MetricVec<B>,
        sets: &[[&str; N]],
    ) -> Result<MetricVec<B>> {
        for set in sets {
            made.get_metric_with_label_values(set)?;
        }
        self.keep(made)
    }
}
