package io.headrace.s3;

import java.util.Map;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.api.plugin.SparkPlugin;

/** Lets executors ask the driver for the credentials of S3, so that they are in no setting and in no file. */
public class CredentialsPlugin implements SparkPlugin {
  private static final String DRIVER = "driver";

  @Override
  public DriverPlugin driverPlugin() {
    return new DriverPlugin() {
      @Override
      public Object receive(Object bucket) {
        Credentials found = SharedCredentials.find((String) bucket);
        return found == null ? null : found.toMessage();
      }
    };
  }

  @Override
  public ExecutorPlugin executorPlugin() {
    return new ExecutorPlugin() {
      @Override
      public void init(PluginContext context, Map<String, String> extraConf) {
        // A local Spark has its executor in the driver, where the credentials are set.
        if (!DRIVER.equals(context.executorID())) {
          SharedCredentials.askWith(context);
        }
      }
    };
  }
}
