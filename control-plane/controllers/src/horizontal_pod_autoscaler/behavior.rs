//! The limits on the change of replicas: bounds, scaling policies and stabilization. Pure.

use std::time::Duration;

use corten_api::k8s_openapi::api::autoscaling::v2::{
    HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior,
};
use jiff::Timestamp;

/// The default stabilization window for scaling down, in seconds.
const STABILIZATION: i32 = 300;
/// The longest period of a policy or window; older entries are dropped.
const MEMORY: Duration = Duration::from_secs(3600);

/// The recent recommendations and changes of one autoscaler.
#[derive(Clone, Debug, Default)]
pub struct History {
    recommendations: Vec<(Timestamp, i32)>,
    /// The changes of the replicas, with their times.
    changes: Vec<(Timestamp, i32)>,
}

impl History {
    pub fn changed(&mut self, by: i32, now: Timestamp) {
        self.changes.push((now, by));
        self.changes.retain(|(at, _)| age(*at, now) <= MEMORY);
    }

    /// Records the replicas that the controller finds first as a recommendation: a new autoscaler, and every one after a
    /// restart, waits for its stabilization window too.
    pub fn begin(&mut self, replicas: i32, now: Timestamp) {
        if self.recommendations.is_empty() {
            self.recommended(replicas, now);
        }
    }

    fn recommended(&mut self, replicas: i32, now: Timestamp) {
        self.recommendations.push((now, replicas));
        self.recommendations.retain(|(at, _)| age(*at, now) <= MEMORY);
    }

    /// Returns the recommendations within this many seconds.
    fn recent(&self, seconds: i32, now: Timestamp) -> impl Iterator<Item = i32> {
        let window = Duration::from_secs(seconds.max(0).unsigned_abs().into());
        self.recommendations.iter().filter(move |(at, _)| age(*at, now) < window).map(|(_, replicas)| *replicas)
    }

    /// Returns the replicas before the changes of the last seconds.
    fn before(&self, current: i32, seconds: i32, now: Timestamp) -> i32 {
        let window = Duration::from_secs(seconds.max(0).unsigned_abs().into());
        let lately = self.changes.iter().filter(|(at, _)| age(*at, now) < window);
        lately.fold(current, |before, (_, by)| before.saturating_sub(*by))
    }
}

fn age(at: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(at).try_into().unwrap_or(Duration::ZERO)
}

/// A reason and a message.
pub type Why = (&'static str, &'static str);

/// The permitted replicas, and the reasons of stabilization and limits.
pub struct Permitted {
    pub replicas: i32,
    pub stabilized: Option<Why>,
    pub limited: Option<Why>,
}

pub const WITHIN_RANGE: Why = ("DesiredWithinRange", "the desired count is within the acceptable range");

/// The bounds and the scaling rules.
pub struct Bounds<'a> {
    pub min: i32,
    pub max: i32,
    pub behavior: Option<&'a HorizontalPodAutoscalerBehavior>,
}

pub fn permitted(bounds: &Bounds<'_>, history: &mut History, current: i32, desired: i32, now: Timestamp) -> Permitted {
    history.recommended(desired, now);
    let rules = |of: fn(&HorizontalPodAutoscalerBehavior) -> &Option<HPAScalingRules>| {
        bounds.behavior.and_then(|behavior| of(behavior).as_ref())
    };
    let (up, down) = (rules(|b| &b.scale_up), rules(|b| &b.scale_down));
    let window = |rules: Option<&HPAScalingRules>| rules.and_then(|rules| rules.stabilization_window_seconds);
    let lowest = history.recent(window(up).unwrap_or(0), now).chain([desired]).min().unwrap_or(desired);
    let highest = history.recent(window(down).unwrap_or(STABILIZATION), now).chain([desired]).max().unwrap_or(desired);
    // The current replicas stay while the windows of the two directions disagree.
    let stable = current.max(lowest).min(highest);
    let stabilized = match stable {
        _ if stable == desired => None,
        _ if desired > current => Some((
            "ScaleUpStabilized",
            "recent recommendations were lower than current one, applying the lowest recent recommendation",
        )),
        _ => Some((
            "ScaleDownStabilized",
            "recent recommendations were higher than current one, applying the highest recent recommendation",
        )),
    };
    let (replicas, limited) = limit(bounds, history, current, stable, (up, down), now);
    Permitted { replicas, stabilized, limited }
}

fn limit(
    bounds: &Bounds<'_>,
    history: &History,
    current: i32,
    desired: i32,
    (up, down): (Option<&HPAScalingRules>, Option<&HPAScalingRules>),
    now: Timestamp,
) -> (i32, Option<Why>) {
    let fast: Why = ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
    let slow: Why = ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");
    let many: Why = ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
    let few: Why = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
    let ceiling = match bounds.behavior {
        None => (current.saturating_mul(2)).max(4),
        Some(_) => up.map_or(i32::MAX, |rules| most(rules, history, current, now)).max(current),
    };
    let floor = down.map_or(i32::MIN, |rules| least(rules, history, current, now)).min(current);
    let (top, over) = if ceiling < bounds.max { (ceiling, fast) } else { (bounds.max, many) };
    let (bottom, under) = if floor > bounds.min { (floor, slow) } else { (bounds.min, few) };
    match desired {
        _ if desired > top => (top, Some(over)),
        _ if desired < bottom => (bottom, Some(under)),
        _ => (desired, None),
    }
}

/// Returns the most replicas that the policies allow.
fn most(rules: &HPAScalingRules, history: &History, current: i32, now: Timestamp) -> i32 {
    let allows = |policy: &HPAScalingPolicy| {
        let start = history.before(current, policy.period_seconds, now);
        match policy.type_.as_str() {
            "Pods" => start.saturating_add(policy.value),
            _ => (f64::from(start) * (1.0 + f64::from(policy.value) / 100.0)).ceil() as i32,
        }
    };
    let proposals = rules.policies.iter().flatten().map(allows);
    match rules.select_policy.as_deref() {
        Some("Disabled") => current,
        Some("Min") => proposals.min().unwrap_or(i32::MAX),
        _ => proposals.max().unwrap_or(i32::MAX),
    }
}

/// Returns the fewest replicas that the policies allow.
fn least(rules: &HPAScalingRules, history: &History, current: i32, now: Timestamp) -> i32 {
    let allows = |policy: &HPAScalingPolicy| {
        let start = history.before(current, policy.period_seconds, now);
        match policy.type_.as_str() {
            "Pods" => start.saturating_sub(policy.value),
            _ => (f64::from(start) * (1.0 - f64::from(policy.value) / 100.0)) as i32,
        }
    };
    let proposals = rules.policies.iter().flatten().map(allows);
    match rules.select_policy.as_deref() {
        Some("Disabled") => current,
        Some("Min") => proposals.max().unwrap_or(i32::MIN),
        _ => proposals.min().unwrap_or(i32::MIN),
    }
}
