//! SelfSubjectReview: who the server thinks you are.

use corten_meta::Value;
use serde_json::json;

use crate::handlers::Target;

pub fn review(target: &Target<'_>) -> Value {
    json!({ "userInfo": target.context.user.to_value() })
}
