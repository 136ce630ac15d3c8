//! SelfSubjectReview: the user of the request.

use corten_meta::Value;
use serde_json::json;

use crate::write::Scope;

pub fn review(target: &Scope<'_>) -> Value {
    json!({ "userInfo": target.context.user.to_value() })
}
