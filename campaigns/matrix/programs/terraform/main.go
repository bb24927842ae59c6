// The resource kafka_quota of Terraform's provider for Kafka, called as Terraform calls it: created, read, deleted.
//
// Arguments: the bootstrap server and, optionally, the provider's kafka_version. Prints what was read.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/Mongey/terraform-provider-kafka/kafka"
	"github.com/hashicorp/terraform-plugin-sdk/v2/diag"
	"github.com/hashicorp/terraform-plugin-sdk/v2/terraform"
)

const patience = 30 * time.Second

func main() {
	log.SetOutput(io.Discard)
	ctx := context.Background()
	provider := kafka.Provider()
	settings := map[string]interface{}{
		"bootstrap_servers": []interface{}{os.Args[1]}, "tls_enabled": false, "timeout": 30,
	}
	if len(os.Args) > 2 {
		settings["kafka_version"] = os.Args[2]
	}
	must("configure", provider.Configure(ctx, terraform.NewResourceConfigRaw(settings)))
	resource, meta := provider.ResourcesMap["kafka_quota"], provider.Meta()

	quota := resource.Data(nil)
	set := func(key string, value interface{}) {
		if err := quota.Set(key, value); err != nil {
			must("set", diag.FromErr(err))
		}
	}
	set("entity_type", "client-id")
	set("entity_name", "terraform")
	set("config", map[string]interface{}{"producer_byte_rate": 1048576.0})
	must("create", resource.CreateContext(ctx, quota, meta))

	found := resource.Data(nil)
	found.SetId(quota.Id())
	must("read", diag.FromErr(found.Set("entity_type", "client-id")))
	must("read", diag.FromErr(found.Set("entity_name", "terraform")))
	must("read", resource.ReadContext(ctx, found, meta))
	fmt.Println(found.Get("config"))

	must("delete", resource.DeleteContext(ctx, quota, meta))
	// A broker follows its controller a moment later.
	for end := time.Now().Add(patience); quota.Id() != ""; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			must("delete", diag.Errorf("the quota is still there"))
		}
		must("read", resource.ReadContext(ctx, quota, meta))
	}
}

func must(step string, found diag.Diagnostics) {
	if found.HasError() {
		fmt.Printf("%s: %s\n", step, found[0].Summary)
		os.Exit(1)
	}
}
