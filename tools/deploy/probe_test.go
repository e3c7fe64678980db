package deploy
import (
 _ "helm.sh/helm/v4/pkg/action"
 _ "helm.sh/helm/v4/pkg/chart/v2/lint"
 _ "helm.sh/helm/v4/pkg/engine"
 _ "k8s.io/api/apps/v1"
 _ "sigs.k8s.io/yaml"
 _ "github.com/moby/buildkit/frontend/dockerfile/parser"
 _ "github.com/compose-spec/compose-go/v2/loader"
 _ "github.com/prometheus/prometheus/promql/parser"
 _ "sluice/internal/realpart"
)
