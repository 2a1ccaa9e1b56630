"""Every failure that a user can meet, as one tree.

    HeadraceError
    ├── UsageError            the pipeline or the command line is wrong       exit code 2
    ├── SetupError            the machine lacks something                     exit code 1
    ├── RunError              the work failed, and would fail again           exit code 1
    │   └── RefusedError      continuing could lose or duplicate records      exit code 1
    └── TransientError        the work failed for a temporary reason          exit code 1

An error has a stable code, one sentence, a source location, facts and remedies. Tests and machines match
on ``code`` and ``params``, never on the text. An error does not change after it is made.
"""

from headrace.errors.base import (
    GONE as GONE,
    NOT_COMMITTED as NOT_COMMITTED,
    HeadraceError as HeadraceError,
    RefusedError as RefusedError,
    RunError as RunError,
    SetupError as SetupError,
    SourceLocation as SourceLocation,
    TransientError as TransientError,
    UsageError as UsageError,
    more_command as more_command,
    text_of as text_of,
)
from headrace.errors.cli import (
    CommandLineError as CommandLineError,
    DemoDriverError as DemoDriverError,
    DemoFolderTakenError as DemoFolderTakenError,
    DemoProducerError as DemoProducerError,
    FileExistsInTheWayError as FileExistsInTheWayError,
    InternalError as InternalError,
    LogSettingInvalidError as LogSettingInvalidError,
    NotConfirmedError as NotConfirmedError,
)
from headrace.errors.declare import (
    ArgumentInvalidError as ArgumentInvalidError,
    DotenvInvalidError as DotenvInvalidError,
    DuplicateNameError as DuplicateNameError,
    FeatureUnsupportedError as FeatureUnsupportedError,
    FormatUnsupportedError as FormatUnsupportedError,
    NoActivePipelineError as NoActivePipelineError,
    NothingDeclaredError as NothingDeclaredError,
    PipelineFileFailedError as PipelineFileFailedError,
    PipelineFilesMissingError as PipelineFilesMissingError,
    ProfileUnknownError as ProfileUnknownError,
    SpecFileUnreadableError as SpecFileUnreadableError,
    SpecInvalidError as SpecInvalidError,
    SpecNotFoundError as SpecNotFoundError,
    SpecUnknownKeyError as SpecUnknownKeyError,
    SpecVariableUnsetError as SpecVariableUnsetError,
    StorageUnsupportedError as StorageUnsupportedError,
)
from headrace.errors.plan import (
    ActionInQueryError as ActionInQueryError,
    AggregateWithoutWatermarkError as AggregateWithoutWatermarkError,
    BatchQueryForStreamingTableError as BatchQueryForStreamingTableError,
    ColumnInvalidError as ColumnInvalidError,
    ColumnNotFoundError as ColumnNotFoundError,
    CycleError as CycleError,
    FlowSchemasDifferError as FlowSchemasDifferError,
    LayoutConflictError as LayoutConflictError,
    OptionInvalidError as OptionInvalidError,
    OptionUnknownError as OptionUnknownError,
    OptionUnsupportedError as OptionUnsupportedError,
    PlanFailedError as PlanFailedError,
    PropertyForbiddenError as PropertyForbiddenError,
    PropertyInvalidError as PropertyInvalidError,
    QueryFailedError as QueryFailedError,
    QueryInvalidError as QueryInvalidError,
    SchemaInvalidError as SchemaInvalidError,
    SchemaMismatchError as SchemaMismatchError,
    SourceReadTwiceError as SourceReadTwiceError,
    SourceUnsupportedError as SourceUnsupportedError,
    StreamingQueryForViewError as StreamingQueryForViewError,
    StreamingUnsupportedError as StreamingUnsupportedError,
    StreamOverViewError as StreamOverViewError,
    TableNotFoundError as TableNotFoundError,
    TableWithoutFlowError as TableWithoutFlowError,
    TargetInvalidError as TargetInvalidError,
    ViewReadMismatchError as ViewReadMismatchError,
)
from headrace.errors.read import (
    NothingToVerifyError as NothingToVerifyError,
    ReadColumnUnknownError as ReadColumnUnknownError,
    ReadConditionInvalidError as ReadConditionInvalidError,
    ReadVersionGoneError as ReadVersionGoneError,
    ReadVersionUnknownError as ReadVersionUnknownError,
    TableUnknownError as TableUnknownError,
    TableUnreadableError as TableUnreadableError,
)
from headrace.errors.run import (
    DatasetUnknownError as DatasetUnknownError,
    DownstreamStreamsError as DownstreamStreamsError,
    DriverLostError as DriverLostError,
    FlowFailedError as FlowFailedError,
    FlowInterruptedError as FlowInterruptedError,
    FlowUnknownError as FlowUnknownError,
    RefreshUnfinishedError as RefreshUnfinishedError,
    TableFolderTakenError as TableFolderTakenError,
    TableNameTakenError as TableNameTakenError,
    ViewInputMissingError as ViewInputMissingError,
)
from headrace.errors.runtime import (
    BrokerPortInUseError as BrokerPortInUseError,
    BrokerRunningError as BrokerRunningError,
    BrokerStartError as BrokerStartError,
    ConnectUnsupportedError as ConnectUnsupportedError,
    DeltaNotConfiguredError as DeltaNotConfiguredError,
    JarCorruptError as JarCorruptError,
    JarDownloadError as JarDownloadError,
    JavaUnsuitableError as JavaUnsuitableError,
    SparkStartError as SparkStartError,
    TopicExistsError as TopicExistsError,
)
from headrace.errors.sources import (
    BrokerUnreachableError as BrokerUnreachableError,
    ChangeFeedMissingError as ChangeFeedMissingError,
    ConsumeFailedError as ConsumeFailedError,
    FileChangedError as FileChangedError,
    FilesNotFoundError as FilesNotFoundError,
    FileUnreadableError as FileUnreadableError,
    FileVanishedError as FileVanishedError,
    KafkaForbiddenError as KafkaForbiddenError,
    KafkaLoginError as KafkaLoginError,
    KafkaTlsError as KafkaTlsError,
    KeptSchemaUnreadableError as KeptSchemaUnreadableError,
    OffsetsBeyondEndError as OffsetsBeyondEndError,
    OffsetsExpiredError as OffsetsExpiredError,
    OffsetsReusedError as OffsetsReusedError,
    OffsetUnknownError as OffsetUnknownError,
    ProduceFailedError as ProduceFailedError,
    RecordInvalidError as RecordInvalidError,
    RecordNotUtf8Error as RecordNotUtf8Error,
    RecordUnparseableError as RecordUnparseableError,
    SampleSchemaInvalidError as SampleSchemaInvalidError,
    StartInvalidError as StartInvalidError,
    TopicNotFoundError as TopicNotFoundError,
    TopicRecreatedError as TopicRecreatedError,
    UpstreamLogExpiredError as UpstreamLogExpiredError,
    UpstreamMissingError as UpstreamMissingError,
    UpstreamRewrittenError as UpstreamRewrittenError,
    UpstreamSchemaStaleError as UpstreamSchemaStaleError,
)
from headrace.errors.state import (
    BatchFencedError as BatchFencedError,
    CheckpointBehindTableError as CheckpointBehindTableError,
    CheckpointCorruptError as CheckpointCorruptError,
    CheckpointForeignError as CheckpointForeignError,
    CheckpointLostError as CheckpointLostError,
    FlowRenamedError as FlowRenamedError,
    LeaseLostError as LeaseLostError,
    RenameImpossibleError as RenameImpossibleError,
    ResumeImpossibleError as ResumeImpossibleError,
    SecondDriverError as SecondDriverError,
    SourcesChangedError as SourcesChangedError,
    StorageNewerError as StorageNewerError,
    StorageUnwritableError as StorageUnwritableError,
    TableBehindCheckpointError as TableBehindCheckpointError,
    TableLostError as TableLostError,
)
from headrace.errors.testing import (
    RowsInvalidError as RowsInvalidError,
    RowsMissingError as RowsMissingError,
    UnusedTestInputError as UnusedTestInputError,
)
