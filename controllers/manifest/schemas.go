package manifest

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	openapi "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metadata "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	limits "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// schemas validate objects of users as the API server does, with the same code and CRDs. The schema
// of a kind is built for its first object.
type schemas struct {
	crds  fs.FS // in its directory bases
	kinds map[string]*schema
}

type schema struct {
	structural *structural.Structural
	openapi    openapi.SchemaValidator
	cel        *cel.Validator
}

func (s *schemas) of(kind string) (*schema, error) {
	if found := s.kinds[kind]; found != nil {
		return found, nil
	}
	files, err := fs.Glob(s.crds, path.Join("bases", "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("find CRDs: %w", err)
	}
	for _, name := range files {
		text, err := fs.ReadFile(s.crds, name)
		if err != nil {
			return nil, fmt.Errorf("read CRD %s: %w", name, err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(text, crd); err != nil {
			return nil, fmt.Errorf("decode CRD %s: %w", name, err)
		}
		if crd.Spec.Names.Kind != kind {
			continue
		}
		if s.kinds[kind], err = newSchema(crd); err != nil {
			return nil, fmt.Errorf("build the schema of %s: %w", kind, err)
		}
		return s.kinds[kind], nil
	}
	return nil, fmt.Errorf("there is no CRD of %s", kind)
}

func newSchema(crd *apiextensionsv1.CustomResourceDefinition) (*schema, error) {
	at := slices.IndexFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Name == v1alpha1.GroupVersion.Version
	})
	if at < 0 {
		return nil, fmt.Errorf("version %s is missing", v1alpha1.GroupVersion.Version)
	}
	in := &apiextensions.JSONSchemaProps{}
	err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[at].Schema.OpenAPIV3Schema, in, nil)
	if err != nil {
		return nil, fmt.Errorf("convert: %w", err)
	}
	out := &schema{}
	if out.structural, err = structural.NewStructural(in); err != nil {
		return nil, fmt.Errorf("read structure: %w", err)
	}
	if out.openapi, _, err = openapi.NewSchemaValidator(in); err != nil {
		return nil, fmt.Errorf("read fields: %w", err)
	}
	out.cel = cel.NewValidator(out.structural, true, limits.PerCallLimit)
	return out, nil
}

// validate returns what is wrong with an object in JSON, nothing if the API server would create it.
func (s *schemas) validate(ctx context.Context, kind string, raw []byte) ([]string, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(raw); err != nil {
		return nil, err
	}
	of, err := s.of(kind)
	if err != nil {
		return nil, err
	}
	var wrong []string
	meta, _, unknown, err := objectmeta.GetObjectMetaWithOptions(object.Object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
	if err != nil {
		wrong = append(wrong, "metadata: "+err.Error())
	} else {
		meta.Namespace = "" // of no meaning, and dropped by the API server
		wrong = append(wrong, texts(metadata.ValidateObjectMeta(meta, false, metadata.NameIsDNSSubdomain, field.NewPath("metadata")))...)
	}
	errs := openapi.ValidateCustomResource(nil, object.Object, of.openapi)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, of.structural, object.Object)...)
	if len(errs) == 0 { // rules are for objects that have the right form
		broken, _ := of.cel.Validate(ctx, nil, of.structural, object.Object, nil, limits.RuntimeCELCostBudget)
		errs = append(errs, broken...)
	}
	wrong = append(wrong, texts(errs)...)
	unknown = append(unknown, pruning.PruneWithOptions(object.Object, of.structural, true, structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})...)
	for _, path := range unknown {
		wrong = append(wrong, path+": there is no such field")
	}
	return wrong, nil
}

func texts(errs field.ErrorList) []string {
	out := make([]string, len(errs))
	for i, err := range errs {
		out[i] = err.Error()
	}
	return out
}
